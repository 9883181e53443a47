#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# What kubernetes/ describes is valid for the oldest and the newest version of Kubernetes of
# which kubernetes-validate has the schemas, and works: init containers, servers and probes
# run as the files say.  The StatefulSet's disk is encrypted, and still there when its pod
# starts again.  Pods are confined, and have the time that they need to end.
#
# kubernetes-validate is in build/kubernetes (scripts/test puts it there).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdinfo --version
requires "$python" -c 'import yaml'
in_network_namespace

top="$srcdir/.."
validator="$top/build/kubernetes/bin"
[ -x "$validator/kubernetes-validate" ] ||
  skip "no kubernetes-validate in build/kubernetes: scripts/test puts it there"

versions=$("$validator/python" -c 'from kubernetes_validate.utils import all_versions
numbers = sorted(tuple(map(int, v.split(".")[:2])) for v in all_versions())
print(*("%d.%d.0" % numbers[i] for i in (0, -1)))')
[ "$(wc -w <<< "$versions")" = 2 ]
for version in $versions; do
  "$validator/kubernetes-validate" --strict -k "$version" "$top"/kubernetes/*.yaml
done

# pods FILE: what its pods run here, as arrays of the shell, once the rest is as it has to be.
pods ()
{
  "$python" - "$1" "$top" "$tmp" <<'PY'
import re, shlex, sys
import yaml

path, top, tmp = sys.argv[1:]
with open(path, encoding="utf-8") as f:
    objects = {o["kind"]: o for o in yaml.safe_load_all(f)}
workload = objects.get("Deployment") or objects["StatefulSet"]
pod = workload["spec"]["template"]["spec"]
(server,) = pod["containers"]

with open(top + "/Containerfile", encoding="utf-8") as f:
    text = f.read()
user = int(re.search(r"^USER (\d+):", text, re.M)[1])
port = int(re.search(r"^EXPOSE (\d+)", text, re.M)[1])
with open(top + "/plugin/ending.c", encoding="utf-8") as f:
    patience = int(re.search(r"PATIENCE_MS (\d+)", f.read())[1])

assert pod["securityContext"]["runAsNonRoot"]
assert pod["securityContext"]["runAsUser"] == user
assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
assert pod["terminationGracePeriodSeconds"] * 1000 > patience
for container in [server] + pod.get("initContainers", []):
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"]} and "privileged" not in context
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    assert {m["mountPath"] for m in container["volumeMounts"]} <= {"/images", "/secrets"}
labels = workload["spec"]["template"]["metadata"]["labels"]
assert workload["spec"]["selector"]["matchLabels"] == labels
assert objects["Service"]["spec"]["selector"] == labels
assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
assert server["ports"] == [{"name": "nbd", "containerPort": port}]
# One writer for each image.
if "StatefulSet" in objects:
    (claim,) = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
else:
    assert "-r" in server["args"]
    assert all(m["readOnly"] for m in server["volumeMounts"])


def array(name, words):
    words = [re.sub("/(images|secrets)", tmp + r"/\1", w) for w in words]
    print("%s=(%s)" % (name, " ".join(map(shlex.quote, words))))


array("create", (pod.get("initContainers") or [{"command": ["true"]}])[0]["command"])
array("arguments", server["args"])
for probe in ("startup", "liveness", "readiness"):
    array(probe, server[probe + "Probe"]["exec"]["command"])
PY
}

create=() arguments=() startup=() liveness=() readiness=()
# start_pod: until the startup probe succeeds.
start_pod ()
{
  local word
  local -a words=()

  # (The image's entry point.)
  for word in "${arguments[@]}"; do
    if [ "$word" = qcow2 ]; then word="$PLUGIN"; fi
    words+=("$word")
  done
  if "${liveness[@]}" || "${readiness[@]}"; then fail "somebody else serves"; fi
  PATH="$abs_top_builddir/img:$PATH" "${create[@]}"
  "$NBDKIT" -f "${words[@]}" > "$tmp/pod.log" 2>&1 &
  server_pid[pod]=$! server_log[pod]="$tmp/pod.log"
  await -p $! "${startup[@]}"
  "${liveness[@]}"
  "${readiness[@]}"
}

mkdir "$tmp/images" "$tmp/secrets"
uri=nbd://localhost
for file in deployment statefulset; do
  pods "$top/kubernetes/$file.yaml" > "$tmp/$file"
done
# (Other programs use the port.)
[ -n "${TEST_IN_NETWORK:-}" ] || exit 0

# shellcheck source=/dev/null
. "$tmp/deployment"
make_image "$tmp/images/disk.qcow2" 1M
qemu-io -f qcow2 -c 'write -P 5 0 64k' "$tmp/images/disk.qcow2"
start_pod
nbdsh_run -c 'assert h.is_read_only() and h.pread(2, 65535) == b"\5\0"'
stop_nbdkit pod

# shellcheck source=/dev/null
. "$tmp/statefulset"
rm "$tmp/images/disk.qcow2"
printf 'in the Secret' > "$tmp/secrets/passphrase"
start_pod
nbdsh_run -c 'h.pwrite(b"kept", 12345); h.flush()'
stop_nbdkit pod
qemu-img info "$tmp/images/disk.qcow2" | grep 'encrypted: yes'
start_pod
nbdsh_run -c 'assert h.get_size() == 10 << 30 and h.pread(4, 12345) == b"kept"'
stop_nbdkit pod
