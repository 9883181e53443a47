#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random requests on images with clusters of 4k, of both versions and all refcount
# widths: see serve_matrix.  (The size is not a multiple of the cluster size.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

serve_matrix 4k 12583936 0.8
