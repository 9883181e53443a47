#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Wrong parameters are refused with one line that names them.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version
requires qemu-img --version

img="$tmp/a.qcow2"
make_image "$img" 1M

refused 'file'
refused 'nosuchfile' file="$tmp/nosuchfile"
refused 'nosuchfile' "$tmp/nosuchfile"
refused "$tmp" file="$tmp"
refused '/dev/null' file=/dev/null
refused 'file|path' file=
refused 'file' file="$img" file="$img"
# Whatever a file is called, a message is one line without control characters.
refused 'no\\x0asuch\\x1b\[31m: cannot open' file="$tmp/"$'no\nsuch\e[31m'
refused 'no\\xc2\\x9b31m: cannot open' file="$tmp/"$'no\xc2\x9b31m'
echo text > "$tmp/"$'te\nxt'
refused 'te\\x0axt: not a qcow2 image' "$tmp/"$'te\nxt'

for value in abc -1 1X 4k4 '' 99999999999999999999 0x; do
  refused 'l2-cache' file="$img" l2-cache="$value"
  refused 'l2-slice' file="$img" l2-slice="$value"
done
for value in 0 1 256 511 513 3000 4095 4M; do
  refused 'l2-slice' file="$img" l2-slice="$value"
done
for value in '' maybe 2; do
  refused 'untrusted' file="$img" untrusted="$value"
done
for value in '' auto 2; do
  refused 'lock' file="$img" lock="$value"
done
for value in '' on off yes UNMAP unmapp 1; do
  refused 'discard' file="$img" discard="$value"
done
for value in '' yes ON unmapp 1 ignore; do
  refused 'detect-zeroes' file="$img" detect-zeroes="$value"
done
for value in '' yes ON true 9; do
  refused 'compress' file="$img" compress="$value"
done
for value in '' on writeback NONE directsync; do
  refused 'cache' file="$img" cache="$value"
done
for value in '' vmdk QCOW2 auto; do
  refused 'backing-format' file="$img" backing-format="$value"
done
refused 'backing|path' file="$img" backing=
refused 'nosuchbase' file="$img" backing="$tmp/nosuchbase" backing-format=raw
refused 'data-file|path' file="$img" data-file=
refused 'data-file= was given more than once' file="$img" data-file=deny data-file=deny
refused 'no external data file' file="$img" data-file="$img"
refused 'untrusted.*data-file' file="$img" data-file="$img" untrusted=true
# A parameter that does not exist: the one that was meant.
refused "'nosuchkey': nbdkit qcow2 --help shows all$" file="$img" nosuchkey=1
refused "'l2cache': did you mean l2-cache=<SIZE>\?" file="$img" l2cache=1M
refused "'L2-CACHE': did you mean l2-cache=<SIZE>\?" file="$img" L2-CACHE=1M
refused "'l2-cache-size': did you mean l2-cache=<SIZE>\?" file="$img" l2-cache-size=1M
refused "'cluster_size': did you mean cluster-size=" file="$img" cluster_size=64K
refused "'backing_fmt': did you mean backing-format=" file="$img" backing_fmt=raw
refused "'bitmap': did you mean bitmap-add=" file="$img" bitmap=a
refused "'qcow2-resiez': did you mean qcow2-resize=" file="$img" qcow2-resiez=1
for command in amend commit compare info map rebase; do
  refused "'$command': nbdkit-qcow2-img $command does that$" file="$img" $command=on
  "$abs_top_builddir/img/nbdkit-qcow2-img" "$command" --help > "$tmp/told"
done
refused "'x{500}': nbdkit qcow2 --help" file="$img" "$(printf 'x%.0s' {1..500})=1"
# Without a value it is a file for nbdkit, and works as one.
usage='check=off\|quick\|full\|repair\|repair-leaks\?'
(
  cd "$tmp"
  refused "given more than once .check is a file here: did you mean $usage" "$img" check
  refused "given more than once .check is a file here: did you mean $usage" check "$img"
  refused "there is no file 'check': did you mean $usage" check
  refused "there is no file 'flatten': did you mean flatten=true\|false\?" flatten
  refused "there is no file 'help': did you mean nbdkit qcow2 --help\?" help
  cp "$img" check
  "$NBDKIT" -U - "$PLUGIN" check --run true
  "$NBDKIT" -U - "$PLUGIN" create create=1M --run true
  "$NBDKIT" -U - "$PLUGIN" create --run true
)
# Sizes are whole numbers.
for size in 1.5G 1,5G 1GiB; do
  refused "create=$size: not a size: a whole number" file="$tmp/new" create=$size
  refused "resize=$size: not a size: a whole number" file="$img" resize=$size
done
refused 'snapshot' file="$img" snapshot=one
refused 'exists already: omit create= to serve it' file="$img" create=1M
for value in '' nosuch.txt 2/3; do
  refused "^nbdkit: error: passphrase=\+$tmp/no/$value: No such file" file="$img" \
    passphrase="+$tmp/no/$value"
done
for value in 0 2 x -5 99999999999999999999; do
  refused '^nbdkit: error: qcow2-passphrase=-FD: must be' file="$img" qcow2-passphrase=-$value
done
refused '^nbdkit: error: passphrase=-FD: Bad file descriptor' file="$img" passphrase=-777
refused "passphrase=\+$tmp: Is a directory" file="$img" passphrase="+$tmp"
refused 'snapshot-create=: a name must have 1 to 255 bytes, not 0' file="$img" \
  snapshot-create=
refused 'bitmap-add=: a name must have 1 to 1023 bytes, not 0' file="$img" bitmap-add=
for key in snapshot-create bitmap-add; do
  refused "$key=.*0x0a" file="$img" $key=$'a\nb'
  for name in $'\xff' $'a\xc3' $'\xc0\x80' $'\xe0\x80\x80' $'\xed\xa0\x80' \
              $'\xf0\x80\x80\x80' $'\xf4\x90\x80\x80' $'\xe2\x82(' $'\x80'; do
    refused "$key=.*the name is not UTF-8" file="$img" $key="$name"
  done
done

# Sizes are nbdkit's.
cp "$img" "$tmp/b.qcow2"
for size in 4194304 4194304b 8192s 8192S 4096k 4096K 4m 4M; do
  "$NBDKIT" -U - "$PLUGIN" "$tmp/b.qcow2" resize=1M shrink=yes resize="$size" --run :
  qemu-img info "$tmp/b.qcow2" | grep -q '(4194304 bytes)'
done
for size in 8E 8192P 9223372036854775808 18014398509481984s 1Q 1MB '1 M' ' 1M' 0x10 1.5G; do
  refused "resize=.*not a size" file="$tmp/b.qcow2" resize="$size"
done

# And these are right.
# shellcheck disable=SC2086
for good in l2-cache=16M l2-cache=0 l2-slice=512 l2-slice=64K l2-slice=2M untrusted=true \
            untrusted=false untrusted=0 discard=unmap discard=ignore detect-zeroes=off \
            detect-zeroes=on detect-zeroes=unmap compress=on compress=off cache=default \
            cache=none lock=on lock=off backing=follow backing=deny data-file=follow \
            data-file=deny l2-cache=9223372036854775807 copy-on-read=Yes flatten=F; do
  "$NBDKIT" -U - --run 'echo SERVED' "$PLUGIN" file="$img" $good > "$tmp/out"
  grep -q SERVED "$tmp/out"
done
