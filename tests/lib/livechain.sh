# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
#
# A chain that is served twice: by the plugin, and by qemu-storage-daemon with the same names
# of nodes.  To be sourced after functions.sh.

requires qemu-storage-daemon --version

# make_chain DIRECTORY N: images b0.qcow2 (the lowest) and so on of 16M, with data in each.
make_chain ()
{
  local i

  mkdir "$tmp/$1"
  qemu-img create -q -f qcow2 "$tmp/$1/b0.qcow2" 16M
  for ((i = 1; i < $2; i++)); do
    qemu-io -f qcow2 -c "write -P $i $((i * 2))M 3M" "$tmp/$1/b$((i - 1)).qcow2"
    qemu-img create -q -f qcow2 -b "$tmp/$1/b$((i - 1)).qcow2" -F qcow2 "$tmp/$1/b$i.qcow2"
  done
  qemu-io -f qcow2 -c 'write -P 9 12M 1M' "$tmp/$1/b$(($2 - 1)).qcow2"
}

# serve_chains N: those in ours/ and theirs/.
serve_chains ()
{
  local i name backing top=$(($1 - 1))
  local -a nodes=()

  start_nbdkit control="$sockdir/o.qmp" "$tmp/ours/b$top.qcow2"
  for ((i = 0; i <= top; i++)); do
    name=node$((top - i))
    if [ $i = $top ]; then name=disk; fi
    backing=,backing=node$((top + 1 - i))
    if [ $i = 0 ]; then backing=; fi
    nodes+=(--blockdev "driver=file,filename=$tmp/theirs/b$i.qcow2,node-name=f$i"
            --blockdev "driver=qcow2,file=f$i,node-name=$name$backing")
  done
  start_storage_daemon "${nodes[@]}"
}
