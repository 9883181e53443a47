#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What the files for GitHub and GitLab name is there: scripts, their options, and the
# folders from which they keep results.  GitHub's actions are pinned to commits, and jobs
# may only read.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires "$python" -c 'import yaml'

top="$srcdir/.."

# commands: what the files run, and "kept PATH", with the values of variables put in.
"$python" - "$top" > "$tmp/commands" <<'PY'
import itertools, re, sys
import yaml

top = sys.argv[1]


def load(name):
    with open(top + "/" + name, encoding="utf-8") as f:
        return yaml.safe_load(f)


def expanded(texts, matrix, pattern):
    """With each combination of the values."""
    for values in itertools.product(*matrix.values()):
        given = dict(zip(matrix, values))
        for text in texts:
            print(re.sub(pattern, lambda m: given.get(m.group(1), m.group(0)), text))


github = load(".github/workflows/ci.yml")
assert github["permissions"] == {"contents": "read"}, "GitHub: permissions"
assert {"push", "pull_request"} == set(github["on"]), "GitHub: when it runs"
for name, job in github["jobs"].items():
    assert "permissions" not in job, name
    texts = []
    for step in job["steps"]:
        if "uses" in step:
            assert re.fullmatch("actions/[a-z-]+@[0-9a-f]{40}", step["uses"]), step
            path = step.get("with", {}).get("path")
            texts += ["kept " + path] if path else []
        else:
            texts += step["run"].splitlines()
    expanded(texts, job.get("strategy", {}).get("matrix", {}),
             r"\$\{\{ matrix\.(\w+) \}\}")

gitlab = load(".gitlab-ci.yml")
print(*gitlab.pop("default")["before_script"], sep="\n")
for name, job in gitlab.items():
    matrices = job.get("parallel", {}).get("matrix", [{}])
    texts = job["script"] + ["kept " + path for key in ("cache", "artifacts")
                             for path in job.get(key, {}).get("paths", [])]
    for matrix in matrices:
        expanded(texts, matrix, r"\$(\w+)")
PY
cat "$tmp/commands"

usage=$("$top/scripts/package" --help)
while read -r program rest; do
  case "$program" in
    apt-get|git) ;;
    .ci/run) [ -x "$top/.ci/run" ] && [ -z "$rest" ] ;;
    scripts/package) grep -qE "^$program $rest( |\$)" <<< "$usage" ;;
    kept) case "$rest" in
            build/engines) grep -q '^  from_pypi engines ' "$top/scripts/common.sh" ;;
            build/test/tests/test-suite.log) grep -q 'build/test"' "$top/scripts/test" ;;
            build/package/*) grep -qE "^scripts/package ${rest##*/} " <<< "$usage" ;;
            *) fail "nothing makes $rest" ;;
          esac ;;
    *) fail "not known: $program $rest" ;;
  esac || fail "not there: $program $rest"
done < "$tmp/commands"
for kind in deb rpm container; do
  [ "$(grep -c "^scripts/package $kind --trial\$" "$tmp/commands")" = 2 ]
done
[ "$(grep -c '^.ci/run$' "$tmp/commands")" = 2 ]
