# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A Ceph cluster for a test, which ends with it.  To be sourced after functions.sh.

export CEPH_CONF="$tmp/ceph/ceph.conf"

# lacks_for_ceph: prints what is missing here, if something is.
lacks_for_ceph ()
{
  local program

  for program in ceph ceph-mgr ceph-mon ceph-osd qemu-nbd rbd; do
    "$program" --version > /dev/null || { echo "no $program"; return; }
  done
  # QEMU loads its driver from somewhere.
  if qemu-img info rbd:none/none 2>&1 | grep -q 'Unknown protocol'; then
    echo "no QEMU driver for RBD (Debian: qemu-block-extra)"
  elif ! dd if=/dev/zero of="$tmp/direct" bs=4096 count=1 oflag=direct status=none; then
    echo "no O_DIRECT"
  fi
}

# start_ceph: the daemons that don't run; those killed continue with the same data.
start_ceph ()
{
  local d

  "$srcdir/../scripts/ceph-one" start "$tmp/ceph"
  for d in mon mgr osd; do
    server_pid[$d]=$(cat "$tmp/ceph/$d.pid")
    server_log[$d]="$tmp/ceph/$d.log"
  done
}
