#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The names in an image may contain secrets, in any form that QEMU knows.  No message
# (also with -v), report, list of exports or output of the programs shows one, whatever
# is done with the image, and neither does what is said about a URI as a parameter.  The
# rest of the name is shown, and a name without secrets is shown as it is: by the plugin
# and by the programs alike.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
PLUGIN=$(realpath "$PLUGIN")
validate=("$abs_top_builddir/img/nbdkit-qcow2-img" validate)
img=("$abs_top_builddir/img/nbdkit-qcow2-img")
cd "$tmp"
mkdir dir

# name_data FILE NAME: makes an image whose header names a data file.
name_data ()
{
  local placeholder
  placeholder=$(printf '%*s' "${#2}" "" | tr ' ' d)
  qemu-img create -q -f qcow2 -o data_file="$placeholder" "$1" 1M
  rm "$placeholder"
  "$python" - "$@" <<'PY'
import sys
with open(sys.argv[1], "r+b") as f:
    data = f.read()
    at = data.index(b"d" * len(sys.argv[2]))
    f.seek(at)
    f.write(sys.argv[2].encode())
PY
}

# says COMMAND...: adds what it prints, and its reports, to `said'.  It may fail.
says ()
{
  rm -f report map log
  "$@" < /dev/null >> said 2>&1 || :
  cat report map log >> said 2> /dev/null || :
}

# Something was said so far, and it does not contain the secret.
keeps_secret ()
{
  [ -s said ] || fail "nothing was said: $1"
  if grep -a hunter2 said; then fail "a secret is shown: $1"; fi
  : > said
}

# --- what is shown of a name ---

# shows NAME [SHOWN]: this is what nbdkit-qcow2-img info makes of it.
shows ()
{
  qemu-img create -q -u -f qcow2 -F raw -b "$1" a.qcow2 1M
  "${img[@]}" info -f qcow2 --output=json a.qcow2 > info.json
  "$python" - "${2-$1}" <<'PY'
import json, sys
found = json.load(open("info.json"))
assert found["backing-filename"] == sys.argv[1], found["backing-filename"]
assert found["full-backing-filename"] == sys.argv[1], found["full-backing-filename"]
PY
  rm info.json
}

shows /a/b@c.raw
shows file:/a.raw
shows file:///a:b@c.raw
shows https://host:80/x/y.raw
shows 'https://[::1]:80/x'
shows nbd://host:10809/export
shows 'nbd+unix:///export?socket=/run/s'
shows nbd:host:10809:exportname=e
shows nbd:unix:/run/s
shows rbd:pool/image
shows 'json:{"driver":"qcow2","file":{"driver":"nbd","export":"e",'\
'"server":{"type":"inet","host":"::1","port":7}},"read-only":true}'
shows 'json:{"file.driver":"https","file.url":"https://host/x"}'

shows https://bob:hunter2@host/x https://...@host/x
shows https://bob:hun/hunter2@host/x https://...@host/x
shows https://bob@x:hunter2@host https://...@host
shows https://bob:hun?hunter2@host/x https://...
shows https://bob:hunter2/x https://...
shows 'https://host/x?token=hunter2' 'https://host/x?...'
shows 'https://host/x#hunter2' 'https://host/x#...'
shows 'https://host/x;id=hunter2' 'https://host/x;...'
shows 'https://host/x?password=@hunter2' https://...
shows 'ssh://bob:hunter2@host:22/x?password=hunter' 'ssh://...@host:22/x?...'
shows ftp:bob:hunter2@host ftp:...
shows bob:hunter2@host:/x bob:...
shows 's3://KEY:hunter2@bucket/x' 's3://...@bucket/x'
shows nbds://bob:hunter2@host/e nbds://...@host/e
shows 'nbds://host/e?tls-psk-file=hunter2' 'nbds://host/e?...'
shows 'nbd+unix:///?socket=/s&password=hunter2' 'nbd+unix:///?...'
shows nbd:bob:hunter2@host:10809 nbd:...
shows nbd:host:10809:password=hunter2 nbd:...
shows nbd:unix:exportname=/s:hunter2 nbd:...
shows rbd:pool/image:id=bob:key=hunter2 rbd:pool/image:...
shows 'rbd:pool/image@snap:key=hunter2' rbd:pool/image@...
shows file:https://bob:hunter2@host/x file:...
shows 'b b:hunter2@host' ...
shows 'json:{"driver":"https","url":"https://bob:hunter2@host/x","cookie":"hunter2"}' \
      'json:{"driver": "https", "url": "https://...@host/x", "cookie": "..."}'
shows 'json:{"file":{"driver":"ssh","host":"host","password":"hunter2","path":"/x"}}' \
      'json:{"file": {"driver": "ssh", "host": "host", "password": "...", "path": "/x"}}'
shows 'json:{"file.driver":"ssh","file.host":"bob:hunter2@h","file.keys":["hunter2"]}' \
      'json:{"file.driver": "ssh", "file.host": "...", "file.keys": "..."}'
shows 'json:{"file.filename":"https://bob:hunter2@host/x","size":5}' \
      'json:{"file.filename": "https://...@host/x", "size": 5}'
shows 'json:{"url":"host/x?token=hunter2","server.path":"/x?y","export":"\u00e9"}' \
      'json:{"url": "...", "server.path": "/x?y", "export": "é"}'
shows 'json:{"file.filename":"json:{\"password\":\"hunter2\"}"}' \
      'json:{"file.filename": "json:..."}'
shows 'json:{"password":"hunter2"' json:...
shows 'json:{"password":hunter2}' json:...
shows 'json:{"driver":"a","driver":"hunter2"}' json:...
shows 'json:{"https://bob:hunter2@host":1}' json:...

# --- what is done with such images ---

truncate -s 1M plain.raw
qemu-img create -q -f qcow2 plain.qcow2 1M

# With the image `a.qcow2'.
do_all ()
{
  local parameters

  : > said
  for parameters in "" untrusted=true backing=deny data-file=deny check=full \
      "check-report=report" "check=full check-report=report data-file=plain.raw" \
      flatten=true snapshot-create=s resize=+1M; do
    cp a.qcow2 b.qcow2
    # shellcheck disable=SC2086,SC2016
    says "$NBDKIT" -v -U - "$PLUGIN" file=b.qcow2 $parameters \
      --run 'nbdinfo --list "$uri"; nbdinfo --map "$uri"'
    keeps_secret "$1: $parameters"
  done

  # Another image is over it.
  qemu-img create -q -u -f qcow2 -F qcow2 -b a.qcow2 over.qcow2 1M
  # shellcheck disable=SC2016
  says "$NBDKIT" -v -U - "$PLUGIN" over.qcow2 --run 'nbdinfo "$uri"'
  says "${img[@]}" info --output=json --backing-chain over.qcow2
  says "${img[@]}" map over.qcow2
  says "$NBDKIT" -v -U - "$PLUGIN" new.qcow2 create=auto backing-file=a.qcow2 \
    backing-format=qcow2 --run true
  keeps_secret "$1: below others"

  cp a.qcow2 dir/a
  start_nbdkit -v -r -- dir="$tmp/dir"
  says nbdinfo --list "$uri"
  says nbdinfo "$(export_uri a)"
  stop_nbdkit
  cp main.log log
  says true
  cat main.log >> said
  keeps_secret "$1: dir="

  says "${validate[@]}" \
    --policy upload --json report --junit log a.qcow2
  says "${validate[@]}" \
    --json report --junit log a.qcow2
  "${validate[@]}" --policy strict - < a.qcow2 >> said 2>&1 || :
  keeps_secret "$1: nbdkit-qcow2-validate"

  for command in info "info --output=json" "info --backing-chain" "info --svg" check map \
                 "map --output=json" commit "commit -b plain.raw" \
                 "rebase -b plain.raw -F raw" "rebase -u -b plain.raw -F raw" \
                 "amend -o compat=0.10" "bitmap --merge a -b plain.qcow2" \
                 "measure -O qcow2" "bench -c 1" "convert -O raw" \
                 "compare plain.qcow2"; do
    cp a.qcow2 b.qcow2
    # shellcheck disable=SC2086
    says "${img[@]}" $command b.qcow2 map
    # shellcheck disable=SC2086
    says "${img[@]}" $command b.qcow2
    keeps_secret "$1: nbdkit-qcow2-img $command"
  done
  for instead in backing.driver=raw,backing.file.filename=plain.raw \
                 data-file.filename=plain.raw; do
    instead+=,driver=qcow2,file.filename=a.qcow2
    says "${img[@]}" info --backing-chain --output=json --image-opts "$instead"
    says "${img[@]}" map --output=json --image-opts "$instead"
    keeps_secret "$1: nbdkit-qcow2-img --image-opts $instead"
  done
}

sample 2 https://bob:hunter2@host/x nbd:bob:hunter2@host:10809 \
  rbd:pool/image:key=hunter2 'json:{"driver":"ssh","password":"hunter2"}' \
  'json:{"password":hunter2}' file:https://bob:hunter2@host/x \
  'json:{"driver":"file","filename":"https://bob:hunter2@host/x"}'
for name in "${sample[@]}"; do
  qemu-img create -q -u -f qcow2 -F raw -b "$name" a.qcow2 1M
  do_all "$name"
  name_data a.qcow2 "$name"
  do_all "data file $name"
done

# --- parameters ---

qemu-img create -q -f qcow2 -F qcow2 -b plain.qcow2 above.qcow2

# (With -v, nbdkit itself prints all parameters.)
long=$(printf '%1100s' '' | tr ' ' x)
: > said
sample 3 https://bob:hunter2@host/x ssh://bob:hunter2@host/ nbds://bob:hunter2@host:x/ \
  nbds://bob:hunter2@127.0.0.1:1/ 'nbds://127.0.0.1:1/?tls-psk-file=/hunter2' \
  rbd:pool/image:key=hunter2 'json:{"driver":"ssh","password":"hunter2"}' \
  "https://bob:hunter2@host/$long" $'https://bob:hunter2@host/\n'
for uri in "${sample[@]}"; do
  for key in file backing data-file allow-uri backing-file; do
    more=()
    case $key in
      file) image=() ;;
      backing-file) image=(file=new.qcow2) more=(create=1M backing-format=raw) ;;
      *) image=(plain.qcow2) ;;
    esac
    says "$NBDKIT" -U - "$PLUGIN" "${image[@]}" "$key=$uri" "${more[@]}" \
      --run "echo served"
    rm -f new.qcow2
    keeps_secret "$key=$uri"
  done
  case $uri in
    *://*)
      for key in stats check-report dir; do
        says "$NBDKIT" -U - "$PLUGIN" plain.qcow2 "$key=$uri" --run "echo served"
        keeps_secret "$key=$uri"
      done ;;
  esac
  for command in info check map "resize --shrink" "convert -O qcow2" snapshot\ -l \
                 "compare plain.qcow2"; do
    # shellcheck disable=SC2086
    says "${img[@]}" $command "$uri" x
    # shellcheck disable=SC2086
    says "${img[@]}" $command "$uri"
    keeps_secret "nbdkit-qcow2-img $command $uri"
  done
  says "${img[@]}" convert -O qcow2 plain.raw "$uri"
  keeps_secret "nbdkit-qcow2-img convert ... $uri"
  says "${img[@]}" create -f qcow2 -u -b "$uri" -F raw new.qcow2 1M
  keeps_secret "nbdkit-qcow2-img create -b $uri"
  says "${img[@]}" create -f qcow2 -o data_file="${uri//,/,,}" new.qcow2 1M
  keeps_secret "nbdkit-qcow2-img create -o data_file=$uri"
  rm -f new.qcow2
  says "${img[@]}" commit -b "$uri" above.qcow2
  keeps_secret "nbdkit-qcow2-img commit -b $uri"
  for unsafe in '' -u; do
    cp above.qcow2 b.qcow2
    says "${img[@]}" rebase $unsafe -b "$uri" -F raw b.qcow2
    says "${img[@]}" info b.qcow2
    keeps_secret "nbdkit-qcow2-img rebase -b $uri"
  done
  says "${img[@]}" bitmap --merge a -b "$uri" plain.qcow2 b
  keeps_secret "nbdkit-qcow2-img bitmap -b $uri"
  case $uri in
    *://*)
      says "${validate[@]}" "$uri"
      says "${validate[@]}" --policy upload "$uri"
      keeps_secret "nbdkit-qcow2-validate $uri"
      says "${img[@]}" info --image-opts "driver=qcow2,file.filename=$uri"
      keeps_secret "nbdkit-qcow2-img info --image-opts $uri"
      says "${img[@]}" advise-cache "$uri"
      keeps_secret "nbdkit-qcow2-img advise-cache $uri" ;;
  esac
  says "${img[@]}" apply-changes "$uri" "$uri"
  keeps_secret "nbdkit-qcow2-img apply-changes $uri"
done
