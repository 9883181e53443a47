#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# borg stores a directory of backups, and what it gives back can be restored.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires borg --version
. "$srcdir/lib/recipes.sh"
export BORG_BASE_DIR="$tmp/borg"

not_run "restic -r /srv/restic backup backups" "needs a repository"
for i in "rclone copy --immutable --include '*.qcow2' backups remote:bucket/disk" \
         "rclone copyto backups/manifest.json remote:bucket/disk/manifest.json" \
         "aws s3 sync --exclude manifest.json --exclude .lock backups s3://bucket/disk" \
         "aws s3 cp backups/manifest.json s3://bucket/disk/manifest.json"; do
  not_run "$i" "needs an account"
done

after ()
{
  same_raw from-borg.raw then.raw
}

recipe "Backups elsewhere: borg, restic, object storage"
