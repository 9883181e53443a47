#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random requests on images with clusters of 64k, of both versions and all refcount
# widths: see serve_matrix.  (The size is not a multiple of the cluster size.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

serve_matrix 64k 25166336 0.8
