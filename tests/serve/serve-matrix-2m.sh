#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Random requests on images with clusters of 2M, of both versions and all refcount
# widths: see serve_matrix.  (The size is not a multiple of the cluster size.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

serve_matrix 2M 41943552 0.8
