#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# The jobs of doc/CI.md that validate images in shards, for GitHub, GitLab, Kubernetes and
# Slurm, do what it says when they run as on these systems (lib/ci_jobs.py): all images are
# in the joined report, a fault in one makes the last job fail, and so does the loss of a
# shard, except where the system tries it again.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires "$python" -c 'import yaml'

cd "$tmp"
mkdir bin images
# As if it was installed; VALIDATE in the environment is another program, such as one in a
# container, and SYSTEMS says for which systems.  Shard 2 is killed the first time that it
# runs, if the test wants.
cat > bin/nbdkit-qcow2-validate <<EOS
#!/bin/bash
options=()
case " \$*" in
  *" --shard 2/"*) if rm "$tmp/kill"; then kill -9 \$\$; fi ;;&
  *" --merge "*) ;;
  *) options+=(--no-read) ;;
esac
[ -z "\${VALIDATE:-}" ] || exec "\$VALIDATE" "\$@"
exec "$abs_top_builddir/img/nbdkit-qcow2-img" validate "\${options[@]}" "\$@"
EOS
chmod +x bin/nbdkit-qcow2-validate
PATH="$tmp/bin:$PATH"
for i in a b c d e f; do make_image "images/$i.qcow2" 1M; done
# (The program may be another user.)
[ -z "${VALIDATE:-}" ] || chmod a+rx .

# verdicts: of all images in the joined report.
verdicts ()
{
  "$python" - <<'PY'
import glob, json, sys
import xml.etree.ElementTree as xml
names = [n for n in ("jobs/last/images.json", "jobs/last/images.xml",
                     "reports/monday.json", "reports/100.json") if glob.glob(n)]
assert len(names) == 1, names
if names[0].endswith("xml"):
    print(*("invalid" if int(s.get("failures")) else "error" if int(s.get("errors"))
            else "valid" for s in xml.parse(names[0]).getroot()))
else:
    print(*(i["verdict"] for i in json.load(open(names[0]))["images"]))
PY
}

# jobs_end STATUS SYSTEM VERDICTS
jobs_end ()
{
  local status=0
  rm -rf jobs reports
  "$python" "$srcdir/lib/ci_jobs.py" "$2" "$srcdir/../doc/CI.md" || status=$?
  [ "$status" = "$1" ]
  [ "$(verdicts)" = "$3" ]
}

for system in ${SYSTEMS:-github gitlab kubernetes slurm}; do
  jobs_end 0 "$system" 'valid valid valid valid valid valid'
  # A shard is lost.
  touch kill
  case "$system" in
    kubernetes) jobs_end 0 "$system" 'valid valid valid valid valid valid' ;;
    slurm) jobs_end 3 "$system" 'valid valid valid valid valid error' ;;
    *) jobs_end 3 "$system" 'valid valid valid valid error' ;;
  esac
  [ ! -e kill ]
  cp images/c.qcow2 good
  printf '\377\377' | dd of=images/c.qcow2 bs=1 seek=$((0x30000)) conv=notrunc status=none
  jobs_end 1 "$system" 'valid valid invalid valid valid valid'
  mv good images/c.qcow2
done
