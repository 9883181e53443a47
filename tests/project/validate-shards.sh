#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbdkit-qcow2-validate --shard and --merge: the parts are even, have each image once and
# do not depend on the order of names; the joined reports are those of one run, with its
# exit status; and no image can be missed without an error.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires qemu-io --version

cd "$tmp"
mkdir images

# status EXPECTED ARGUMENT...: output to out and err.
status ()
{
  local expected="$1" status=0
  shift
  "$abs_top_builddir/img/nbdkit-qcow2-img" validate "$@" > out 2> err || status=$?
  cat out err
  [ "$status" = "$expected" ] || fail "exit status $status, not $expected"
}

# validate EXPECTED ARGUMENT...
validate ()
{
  local expected="$1"
  shift
  status "$expected" "$@"
}

# names REPORT: of its images, without the directory, in order.
names ()
{
  "$python" -c 'import json, sys
print(*sorted(ascii(i["image"].split("/")[-1]) for i in json.load(open(sys.argv[1]))["images"]))' "$1"
}

# results REPORT: what does not depend on time or order.
results ()
{
  "$python" - "$1" <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
report["images"].sort(key=lambda i: i["image"])
for i in report["images"]:
    for s in i["steps"]:
        del s["seconds"]
print(json.dumps(report, indent=1))
PY
}

# shards N ARGUMENT...: the reports 1.json to N.json of all shards, which may fail.
shards ()
{
  local n="$1" i
  shift
  for ((i = 1; i <= n; i++)); do
    rm -f "$i.json"
    "$abs_top_builddir/img/nbdkit-qcow2-img" validate --shard "$i/$n" --json "$i.json" --no-read "$@" > "$i.tap" || [ $? != 2 ]
  done
}

for i in a b c d; do make_image "images/$i.qcow2" 1M; done
make_image images/$'\xff\n.qcow2' 1M

# --- the parts

shards 3 images/*
[ "$(names 1.json)" = "'a.qcow2' 'd.qcow2'" ]
[ "$(names 2.json)" = "'\\udcff\\n.qcow2' 'b.qcow2'" ]
[ "$(names 3.json)" = "'c.qcow2'" ]
# Whatever the order, and from a file with the names.
find images -type f -print0 | sort -rz > list
mkdir other
for i in 1 2 3; do mv $i.json other; done
shards 3 --list list
for i in 1 2 3; do diff <(results $i.json) <(results other/$i.json); done
validate 0 --list - < <(printf 'images/a.qcow2\n\nimages/b.qcow2\n')
grep -c '^ok .*: read$' out | grep -x 2
# An empty part.
validate 0 --shard 9/9 --json 9.json --junit 9.xml images/*
grep -x '1..0 # SKIP no image' out
[ "$(names 9.json)" = "" ]

# --- joined

validate 0 --no-read --json one.json --junit one.xml images/*
status 0 --merge --json all.json --junit all.xml -- [1-3].json
diff <(results one.json) <(results all.json)
diff <(grep -c '<test' one.xml) <(grep -c '<test' all.xml)
grep -x '1..5' out
# Also if something is wrong in one of them.
rm images/c.qcow2
for expected in 3 1; do
  if [ "$expected" = 1 ]; then
    qemu-io -f qcow2 -c 'write 0 64k' images/d.qcow2
    header_patch images/d.qcow2 l2 Q +512
  fi
  validate "$expected" --no-read --json one.json images/{a,b,c,d}.qcow2
  shards 2 images/{a,b,c,d}.qcow2
  status "$expected" --merge --json all.json 2.json 1.json
  diff <(results one.json) <(results all.json)
done
rm images/d.qcow2
make_image images/c.qcow2 1M
make_image images/d.qcow2 1M

# --- what is missing, or there twice

shards 3 images/*
status 3 --merge --json all.json --junit all.xml 1.json 3.json
grep -A 1 '^not ok 4 - shard 2/3: report' out
"$python" -c '
import json
r = json.load(open("all.json"))
assert (r["valid"], r["invalid"], r["errors"]) == (3, 0, 1), r'
[ "$(grep -c '<error' all.xml)" = 1 ]
status 2 --merge 1.json 2.json 3.json ./1.json
grep '1.json and ./1.json: two reports of shard 1/3' err

# edit REPORT EXPRESSION: changes a report, r.
edit ()
{
  "$python" -c 'import json, sys
r = json.load(open(sys.argv[1]))
exec(sys.argv[2])
json.dump(r, open("edited.json", "w"))' "$1" "$2"
}

edit 1.json 'r["images"].append(dict(r["images"][0], image="images/c.qcow2"))'
status 3 --merge edited.json 2.json 3.json
grep -A 1 '^not ok .* images/c.qcow2: shards' out | grep '1, 3'
edit 1.json 'del r["images"][0]'
status 3 --merge edited.json 2.json 3.json
grep 'the reports have 4 of 5 images$' out

# Sizes that change between shards.
for i in a b c; do
  rm -f "images/$i.qcow2"
  make_image "images/$i.qcow2" 64M
done
qemu-io -f qcow2 -c 'write 0 8M' images/b.qcow2
shards 2 --balance images/{a,b,c,d}.qcow2
[ "$(names 1.json)" = "'b.qcow2'" ]
status 0 --merge 1.json 2.json
qemu-io -f qcow2 -c 'write 0 32M' images/c.qcow2
mv 1.json first.json
shards 2 --balance images/{a,b,c,d}.qcow2
status 3 --merge first.json 2.json
grep 'did the size of a file change' out
grep 'more than one shard validated it: 1, 2' out

# --- refused

shards 2 images/*
for other in '1 3 images/*' '1 2 images/a.qcow2 images/b.qcow2' '1 2 --fsck images/*' \
             '1 2 --check quick images/*' '1 2 --balance images/*'; do
  read -r i n arguments <<< "$other"
  # shellcheck disable=SC2086
  validate 0 --no-read --shard "$i/$n" --json other.json $arguments
  status 2 --merge 2.json other.json
  grep '2.json and other.json: reports of runs with different' err
  [ ! -s out ]
done
validate 0 --no-read --json run.json images/*
status 2 --merge run.json
grep 'run.json: not the report of a shard' err
status 2 --merge none.json
grep 'none.json: No such file' err
head -c 300 1.json > half.json
printf '\xff{' > text.json
printf '[%.0s' {1..100000} > deep.json
for damage in '' 'r = 1' 'r = []' 'r = {}' 'r["images"] = 1' 'r["images"] = ["a"]' \
              'r["images"][0]["image"] = "\ud800"' 'r["images"][0]["image"] = 5' \
              'r["images"][0]["steps"] = []' 'r["images"][0]["steps"][0] = {}' \
              'r["images"][0]["steps"][0]["status"] = "fine"' \
              'r["images"][0]["steps"][0]["seconds"] = float("nan")' \
              'r["images"][0]["steps"][0]["message"] = {}' 'r["shard"] = 5' 'r["shard"] = []' \
              'r["shard"]["index"] = 0' 'r["shard"]["index"] = 3' 'r["shard"]["index"] = 1.5' \
              'r["shard"]["count"] = 10**12' 'r["shard"]["images"] = "x"' \
              'del r["shard"]["options"]' 'r["shard"]["options"] = {}' \
              'del r["shard"]["list"]'; do
  edit 1.json "${damage:-pass}"
  if [ -z "$damage" ]; then status 0 --merge edited.json 2.json; continue; fi
  status 2 --merge edited.json 2.json
  grep '^nbdkit-qcow2-img: edited.json: not a report' err
done
for i in half text deep; do
  status 2 --merge "$i.json"
  grep "^nbdkit-qcow2-img: $i.json: not a report" err
done

status 2 --merge
status 2 --merge --fsck 1.json 2.json
grep -e '--merge: cannot be used with --fsck' err
status 2 --merge --shard 1/2 1.json 2.json
for shard in 0/3 4/3 1/0 1 1/ /1 a/b -1/3 1/2/3 ' 1/2' 1/1000001 99999999999/99999999999; do
  status 2 --shard="$shard" images/a.qcow2
  grep -e '--shard: not I/N' err
done
status 2 --balance images/a.qcow2
status 2 --shard 1/2 images/a.qcow2 images/b.qcow2 images/a.qcow2
grep 'given twice: images/a.qcow2' err
status 2 --list none
: > empty
status 2 --list empty
