#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Each parameter, as --help lists them: it is refused if given twice, unless it can be
# repeated, and without the parameter that it requires; and those that are refused with
# dir= are those that the manual lists.  (Values: see unit/plugin/params.c.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$NBDKIT" --version
requires qemu-img --version

pod="$srcdir/../plugin/nbdkit-qcow2-operation.pod"
cd "$tmp"
make_image a.qcow2 1M
qemu-img snapshot -c one a.qcow2
mkdir images

# A good value for each, which asks for something.
declare -A good=(
  [file]=a.qcow2 [dir]=images [l2-cache]=1M [l2-slice]=4K [backing]=other.qcow2
  [backing-format]=raw [data-file]=disk.raw [snapshot]=one [bitmap-add]=b
  [bitmap-clear]=b [bitmap-remove]=b [bitmap-granularity]=64K
  [bitmap-durable]=true
  [snapshot-create]=s [snapshot-apply]=one [snapshot-delete]=one [resize]=2M [shrink]=true
  [preallocation]=metadata [passphrase]=x [untrusted]=true
  [discard]=ignore [detect-zeroes]=on [compress]=on [compress-level]=3
  [compress-window]=32K [stats]=stats.json
  [copy-on-read]=true [flatten]=true [cache]=none [check]=quick
  [check-report]=check.json [lock]=off [create]=1M [cluster-size]=64K [compat]=1.1
  [refcount-bits]=16 [extended-l2]=true [lazy-refcounts]=true [compression-type]=zstd
  [encrypt]=luks [iter-time]=10 [backing-file]=other.qcow2 [data-file-raw]=true
  [allow-uri]=nbd://localhost [connect-timeout]=5 [reconnect]=5 [checkpoint-interval]=7
  [on-enospc]=wait [watermark]=1M [answer-timeout]=5 [overwrite]=true
  [dir-symlinks]=follow [control]=qmp [stats-format]=prometheus
  [log]=log [log-format]=json [log-level]=warning
)
repeatable=" allow-uri bitmap-add bitmap-clear bitmap-remove snapshot-create \
 snapshot-apply snapshot-delete resize passphrase "

"$NBDKIT" "$PLUGIN" --help |
  sed -n 's/^\[\{0,1\}\([a-z0-9][-a-z0-9]*\)=.*/\1/p' | sort -u > keys
[ "$(wc -l < keys)" -ge 42 ]
diff -u keys <(printf '%s\n' "${!good[@]}" | sort)
mapfile -t keys < keys

# run PARAMETER...: sets $status; what was said is in `said'.
run ()
{
  status=0
  "${soon[@]}" "$NBDKIT" -U - --run : "$PLUGIN" "$@" </dev/null >said 2>&1 || status=$?
}

# --- twice ---

for key in "${keys[@]}"; do
  if [[ $repeatable = *" $key "* ]]; then continue; fi
  first=(file=a.qcow2)
  if [ "$key" = file ]; then first=(); fi
  refused "^nbdkit: error: $key= was given more than once" "${first[@]}" "$key=${good[$key]}" \
    "$key=${good[$key]}"
done
cp a.qcow2 b.qcow2
"$NBDKIT" -U - "$PLUGIN" b.qcow2 bitmap-add=b bitmap-add=c bitmap-clear=b \
  bitmap-clear=c bitmap-remove=b bitmap-remove=c snapshot-create=s snapshot-create=t \
  snapshot-apply=s snapshot-apply=t snapshot-delete=s snapshot-delete=t resize=2M \
  resize=+1M --run :
# The name that no filter takes.
refused '^nbdkit: error: lock= was given more than once' a.qcow2 lock=off qcow2-lock=on
"$NBDKIT" -U - --filter=cache "$PLUGIN" b.qcow2 cache=unsafe qcow2-cache=none --run :
refused '^nbdkit: error: qcow2-cache=writeback: must be default, none or unsafe$' \
  --filter=cache -- a.qcow2 cache=unsafe qcow2-cache=writeback

# --- dir= ---

# The manual's list: what is in B<> in this paragraph, with a value where only that is
# refused.
sed -n '/^These parameters are about a single image,* and are refused with B<dir>/,/^$/p' \
  "$pod" | tr '\n' ' ' | sed 's/and are refused with B<dir>//' |
  grep -o 'B<[^>]*>[A-Z]*' | sed 's/B<\(.*\)>/\1/' | sort > manual
set +x
for key in "${keys[@]}"; do
  [ "$key" != dir ] || continue
  # (This requires another one, which goes with dir=.)
  with=()
  if [[ $key = compress-* ]]; then with=(compress=on); fi
  if [ "$key" = stats-format ]; then with=(stats=json); fi
  if [[ $key = log-* ]]; then with=(log=log); fi
  run dir=images "${with[@]}" "$key=${good[$key]}"
  if [ $status -eq 0 ]; then continue; fi
  # (It may be refused for itself, by what it says.)
  grep -q "^nbdkit: error: dir= cannot be used with $key=" said ||
    fail "$key: $(cat said)"
  case $key in
    # There are other values, which go with dir=.
    backing|data-file) run dir=images "$key=deny"; [ $status -eq 0 ]
                       echo "$key=PATH" ;;
    *) echo "$key" ;;
  esac
done | sort > code
set -x
diff -u manual code
# What asks for nothing is no contradiction.
"$NBDKIT" -U - "$PLUGIN" dir=images flatten=false check=off --run :

# --- what belongs to something else ---

# needs WHAT PARAMETER...
needs ()
{
  refused "^nbdkit: error: [a-z0-9-]*=[a-z0-9.]* requires $1" a.qcow2 "${@:2}"
}
needs 'resize=SIZE' shrink=true
needs 'stats=FILE' stats-format=prometheus
needs 'log=FILE' log-level=info
needs 'resize=SIZE' shrink=false
needs 'create=SIZE or resize=SIZE' preallocation=off
needs 'bitmap-add=NAME' bitmap-granularity=64K
needs 'bitmap-add=NAME' bitmap-granularity=64K bitmap-clear=b bitmap-remove=c
needs 'compress=on' compress-level=3
needs 'compress=on' compress-window=32K compress=off
needs 'check=quick' check-report=check.json
needs 'check=quick' check-report=check.json check=off
needs 'encrypt=luks' iter-time=10
needs 'encrypt=luks' create=1M iter-time=10
for key in cluster-size compat refcount-bits extended-l2 lazy-refcounts \
           compression-type encrypt backing-file data-file-raw; do
  needs 'create=SIZE' $key=${good[$key]}
done
refused 'stats= and check-report= name the same file' a.qcow2 check=quick stats=x \
  check-report=x

# --- contradictions ---

cp a.qcow2 before.qcow2
for change in bitmap-add=b bitmap-clear=b bitmap-remove=b snapshot-create=s \
              snapshot-apply=one snapshot-delete=one resize=2M flatten=true \
              copy-on-read=true check=repair; do
  name=${change%%=*}
  refused "^nbdkit: error: snapshot= cannot be used with $name=" a.qcow2 snapshot=one \
    $change
  refused "^nbdkit: error: untrusted=true cannot be used with $name=" a.qcow2 \
    untrusted=true $change
done
# What could never have an effect.
for idle in compress=on backing-format=raw; do
  refused "^nbdkit: error: untrusted=true cannot be used with ${idle%%=*}=" a.qcow2 \
    untrusted=true $idle
done
refused '^nbdkit: error: backing=deny cannot be used with backing-format=' a.qcow2 \
  backing=deny backing-format=raw
"$NBDKIT" -U - "$PLUGIN" a.qcow2 untrusted=true compress=off --run :
# The whole value is shown.
for size in +8E --1 +-5 -K 1x; do
  refused "^nbdkit: error: resize=${size//+/[+]}: not a size" a.qcow2 resize=$size
done
cmp a.qcow2 before.qcow2
# What does not change the image goes with it.
"$NBDKIT" -U - "$PLUGIN" a.qcow2 snapshot=one flatten=no check=quick backing=deny \
  discard=ignore compress=on cache=none --run :
