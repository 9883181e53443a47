#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# untrusted=true, with each image that a shell test of the corpus gives to the plugin: it
# is served read-only, or refused in one line, soon, and with little memory.  It does not
# change, and no files are opened but those that any image needs.  (The C tests of the
# regressions serve theirs with untrusted=true themselves: lib/regression.c.)
#
# Environment: CASES="NAME...": only these (in the long suite).

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires nbdcopy --version
requires strace -f -e trace=openat true

# --- the images

images="$tmp/images"
mkdir "$images" "$tmp/cases" "$tmp/traces"
# In place of nbdkit: keeps the image of the plugin, if it is a new one.
cat >"$tmp/nbdkit" <<END
#!/bin/bash
behind=
for word; do
  file="\${word#file=}"
  if [ -n "\$behind" ] && [ -f "\$file" ] && [ "\$(head -c 3 "\$file")" = QFI ]; then
    sum=\$(sha256sum <"\$file")
    name="$images/\$CASE-\${sum:0:16}"
    compgen -G "$images/*-\${sum:0:16}" >/dev/null || cp --sparse=always "\$file" "\$name"
    break
  fi
  [ "\$word" != "$PLUGIN" ] || behind=1
done
exec "$NBDKIT" "\$@"
END
chmod +x "$tmp/nbdkit"

# take CASE
take ()
{
  local name status=0

  name="$(basename "$1" .sh)"
  CASE="$name" NBDKIT="$tmp/nbdkit" bash "$1" >"$tmp/$name.log" 2>&1 || status=$?
  [ "$status" = 0 ] || [ "$status" = 77 ] || { tail "$tmp/$name.log"; return 1; }
}
export -f take
export tmp srcdir abs_top_builddir PLUGIN

sample 12 "$srcdir"/regressions/*.sh
for case in "${sample[@]}"; do
  name="$(basename "$case" .sh)"
  [[ " ${CASES:-$name} " != *" $name "* ]] || echo "$case"
done | (cd "$tmp/cases" && xargs -P 4 -I '{}' bash -c 'take "{}"')

# --- served

make_image "$tmp/sound" 1M
"$python" - "$tmp/sound" "$images" "$tmp/traces" "$NBDKIT" "$PLUGIN" <<'PY'
import collections, concurrent.futures, hashlib, os, re, resource, subprocess, sys

sound, images, traces, nbdkit, plugin = sys.argv[1:]
CPU_SECONDS, MEMORY_KIB = 60, 200000
# Images, and how serving them ends.
IMAGES, ENDS = (100, 3) if os.environ.get("QCOW2_TEST_LONG") else (1, 1)
# What may be read, depending on the image: for malloc, for encryption, for jansson's hash
# tables (a message hides secrets of a name with json:), and at the end (ownthreads.c).
LIBRARIES = re.compile("/proc/sys/vm/|/sys/devices/system/cpu/|.*/openssl.cnf$|"
                       "/dev/urandom$|/proc/self/task/")
ends = []

# The client reads the whole disk, if that is not too large.
CLIENT = """
nbdinfo --is readonly "$uri" || exit 3
size=$(nbdinfo --size "$uri")
[ "$size" -gt 100000000 ] || nbdcopy --requests=8 "$uri" null: || exit 4
"""


def fail(image, what):
    sys.exit("%s: %s" % (os.path.basename(image), what))


def fingerprint(image):
    s, h = os.stat(image), hashlib.sha256()
    # (In pieces: memory of this process would count as that of the next server.)
    with open(image, "rb") as f:
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    return h.digest(), s.st_size, s.st_mtime_ns


def serve(image, *parameters):
    """Whether it is served, and what is opened, as (NAME, MODE)."""
    trace, before = os.path.join(traces, os.path.basename(image)), fingerprint(image)
    p = subprocess.run(
        ["prlimit", "--cpu=%d" % CPU_SECONDS, "strace", "-f", "-qq", "-o", trace,
         "-e", "trace=open,openat,openat2,creat",
         nbdkit, "-U", "-", "--run", CLIENT, plugin, "file=" + image, "untrusted=true",
         *parameters], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True)
    end = {0: "served", 1: "refused", 4: "served in part"}.get(p.returncode)
    if end is None:
        fail(image, "status %d: %s" % (p.returncode, p.stderr))
    ends.append(end)
    # (check=full has a line for each fault.)
    if end == "refused" and not parameters and p.stderr.count("\n") != 1:
        fail(image, "not refused in one line: " + p.stderr)
    with open(trace, errors="backslashreplace") as f:
        calls = f.read()
    if re.search(r"--- SIG(SEGV|ABRT|BUS|FPE|ILL) ", calls):
        fail(image, "the server has crashed: " + p.stderr)
    if resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > MEMORY_KIB:
        fail(image, "takes too much memory")
    if fingerprint(image) != before:
        fail(image, "has changed")
    return end != "refused", {
        (name.replace(image, "IMAGE"), mode) for name, mode in
        re.findall(r'(?:open|creat)[^"\n]*"([^"\n]*)"(?:, (O_[A-Z]+))?', calls)
        if mode != "O_RDONLY" or not LIBRARIES.match(name)}


def examine(image):
    """Without and, unless it is refused at once, with a check before serving."""
    served, opened = serve(image)
    return opened | serve(image, "check=full")[1] if served else opened


usual = examine(sound)
if ("IMAGE", "O_RDONLY") not in usual or ("IMAGE", "O_RDWR") in usual:
    fail(sound, "is not opened read-only: %s" % [m for n, m in usual if n == "IMAGE"])
names = [os.path.join(images, n) for n in sorted(os.listdir(images))]
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for image, opened in zip(names, pool.map(examine, names)):
        if not opened <= usual:
            fail(image, "is not all that is opened: %s" % sorted(opened - usual))
counts = collections.Counter(ends)
print("%d images: %s" % (len(names), ", ".join("%s %d" % c for c in counts.items())))
if "CASES" not in os.environ and (len(names) < IMAGES or
                                      len(counts) < ENDS):
    sys.exit("the corpus has more images")
PY
