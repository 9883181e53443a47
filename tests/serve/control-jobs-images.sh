#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Jobs on images of all kinds, with clients writing: encrypted ones, external data files, raw
# bases, subclusters, small and large clusters, compression types, version 2.  What is not
# possible is refused in a line.  Afterwards the disk shows what clients wrote, for QEMU too.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools

img="$abs_top_builddir/img/nbdkit-qcow2-img"
cd "$tmp"
printf hush > key
secret=(--object "secret,id=s,file=$tmp/key")
luks=encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10

# words FILE: how qemu-img opens an image and its chain.
words ()
{
  qemu-img info -U --output=json --backing-chain "$1" | "$python" -c 'import json, sys
chain = json.load(sys.stdin)
print("driver=%s,file.filename=%s" % (chain[0]["format"], sys.argv[1]) +
      "".join(",%sencrypt.key-secret=s" % ("backing." * i)
              for i, image in enumerate(chain) if image.get("encrypted")))' "$1"
}

# make KIND KIND KIND: l0, the base; l1 over it; l2; and model, what the disk shows.  A kind
# is raw, or options of qemu-img create.
make ()
{
  local n below format

  rm -rf "$tmp/d"
  mkdir "$tmp/d"
  cd "$tmp/d"
  for n in 0 1 2; do
    below=() format=qcow2
    [ "$n" = 0 ] || below=(-u -b "l$((n - 1))" -F qcow2)
    if [ "$n" = 1 ] && [ "$1" = raw ]; then below=(-u -b l0 -F raw); fi
    if [ "${*:n+1:1}" = raw ]; then format=raw; fi
    qemu-img create -q -f $format "${secret[@]}" "${below[@]}" \
      $([ $format = raw ] || echo -o "${*:n+1:1}" | sed "s/DATA/data_file=data$n/") l$n 8M
    qemu-io "${secret[@]}" --image-opts -c "write -P $((n + 1)) $((n * 1300))k 2M" \
      -c "write -P $((n + 4)) 6M 100k" -c "write -z 2500k 512k" \
      "$([ $format = raw ] && echo driver=raw,file.filename=l0 || words l$n)"
  done
  qemu-img convert "${secret[@]}" --image-opts -O raw "$(words l2)" model
}

# served PARAMETER...: the disk in l2.
serve ()
{
  if qemu-img info --backing-chain l2 | grep -q 'encrypted: yes'; then
    set -- passphrase=+"$tmp/key" "$@"
  fi
  start_nbdkit control="$sockdir/q" "$tmp/d/l2" "$@"
}

# live ARGUMENT...: clients write meanwhile; model has it then.
live ()
{
  PYTHONPATH="$srcdir/lib" "$python" - "$uri" "$img" "$sockdir/q" "$@" <<'PY'
import subprocess, sys
from qmp import Writers
uri, img, socket, *command = sys.argv[1:]
w = Writers(uri, "model", n=2).start()
status = subprocess.call([img, "--control", socket, *command])
w.end()
sys.exit(status)
PY
}

# shows FILE: what clients wrote, without faults.
shows ()
{
  qemu-img compare "${secret[@]}" --image-opts "$(words "$1")" driver=raw,file.filename=model
  case "$(words "$1")" in
    driver=raw*) ;;
    *) qemu-img check "${secret[@]}" --image-opts "$(words "$1")" ;;
  esac
}

# commit_to N KIND KIND KIND: clients go on in layer N, unless that cannot be.
commit_to ()
{
  local n=$1 why=
  shift

  make "$@"
  serve
  case "$3 over ${*:n+1:1}" in
    *"over raw") why='its base is not a qcow2 image' ;;
    *"over DATA"*) why='its base has an external data file' ;;
    # What nobody could read would be open to all.
    "$luks over compat"*) why='it is encrypted, and its base is not' ;;
    *compat=0.10) why='it is of version 2, and clients that trim it would see its base' ;;
  esac
  if [ -z "$why" ]; then
    live commit -b l$n disk
  elif live commit -b l$n disk 2>err; then
    fail "not refused: $why"
  else
    grep "the image cannot be committed: $why" err
  fi
  stop_nbdkit
  if [ -n "$why" ]; then shows l2; return; fi
  rm l2
  if [ $n = 0 ]; then rm l1; fi
  shows l$n
}

kinds=(
  "compat=1.1 compat=1.1 $luks"
  "$luks $luks $luks"
  "raw compat=0.10 compat=0.10"
  "raw cluster_size=512 extended_l2=on,cluster_size=16k"
  "compression_type=zstd compat=1.1 cluster_size=2M"
  "DATA DATA compat=1.1"
  "DATA,data_file_raw=on compat=1.1 refcount_bits=1"
)
for k in "${kinds[@]}"; do
  read -ra layers <<< "$k"
  format=qcow2
  if [ "${layers[0]}" = raw ]; then format=raw; fi

  make "${layers[@]}"
  serve
  live rebase -b '' disk
  stop_nbdkit
  rm l0 l1
  shows l2

  make "${layers[@]}"
  serve
  live rebase -b l0 -F $format disk
  stop_nbdkit
  rm l1
  shows l2

  commit_to 1 "${layers[@]}"
  commit_to 0 "${layers[@]}"
done

# An image with a data file cannot become full of what is below it.
make raw compat=1.1 DATA
serve
if live rebase -b '' disk 2>err; then fail "not refused"; fi
grep 'data file' err
stop_nbdkit
shows l2
