#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A server that ends when its --run does, at once or later, says nothing.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

PLUGIN=$(realpath "$PLUGIN")
cd "$tmp"
make_image a.qcow2 1M
for _ in {1..40}; do
  # shellcheck disable=SC2016
  for run in true 'nbdinfo --size "$uri" > size'; do
    "$NBDKIT" -U - "$PLUGIN" a.qcow2 --run "$run" > said 2>&1
    diff /dev/null said
  done
done
