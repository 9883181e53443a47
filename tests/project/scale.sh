#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# Many hosts with overlays of one golden image behind NBD (lab/scale, small): each
# guest reads what the golden image contains, also with copy-on-read and through a cache,
# and qemu-img check finds no fault in any overlay.  The origin serves as much as
# doc/SCALE.md says: with copy-on-read hardly anything for a second boot, and to a rack each
# cluster once.  The commands of doc/SCALE.md work.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires_filter cache
requires "$NBDKIT" nbd --dump-plugin

scale="$srcdir/../lab/scale"
export NBDKIT TMPDIR="$sockdir"

"$scale" --plugin "$PLUGIN" --work "$sockdir/w" --servers 8 --reads 700 \
  --json "$tmp/figures.json"
[ ! -e "$sockdir/w" ]
"$python" - "$tmp/figures.json" <<'PY'
import json, sys

figures = json.load(open(sys.argv[1]))
n, mib = figures["servers"], 1 << 20
clusters = figures["clusters"] * 65536
assert (n, figures["reads"]) == (8, 700)


def origin(way, boot):
    return figures["ways"][way][boot]["origin"]


for boot in 0, 1:
    # What guests read, and a little metadata.
    used = origin("plain", boot)
    assert n * figures["bytes"] < used["read"] < n * (figures["bytes"] + mib), used
    assert 700 * n < used["requests"] < 1.2 * 700 * n, used
    overlays = figures["ways"]["plain"][boot]["overlays"]
    assert len(overlays) == n and max(overlays) < mib, overlays
# Each cluster once, and no more than the clusters.
used = origin("cor", 0)
assert n * clusters < used["read"] < n * (clusters + mib), used
overlays = figures["ways"]["cor"][0]["overlays"]
assert len(overlays) == n
assert clusters <= min(overlays) and max(overlays) < clusters + mib, overlays
assert origin("cor", 1)["read"] < n * mib
assert origin("cor", 1)["requests"] < n * 20
# The same for all of a rack.
for way in "rack", "rack+cor":
    assert clusters < origin(way, 0)["read"] < clusters + 2 * mib, origin(way, 0)
    assert origin(way, 1)["read"] < mib
for way in figures["ways"].values():
    for boot in way:
        for host in boot["hosts"]:
            # A connection to the origin, one to the guest, and nbdkit's own.
            assert host["fds"] < 20 and host["rss"] < 100 * mib, host
            assert 0 < host["first"] <= host["total"], host
PY

# What it refuses.
for wrong in '--ways none' '--servers 0' '--trace none' "--work $tmp"; do
  # shellcheck disable=SC2086
  if "$scale" --plugin "$PLUGIN" --servers 1 --reads 1 $wrong; then
    fail "$wrong: no error"
  fi
done

# A guest that gets other data, or a server that does not start, is noticed.
cat > "$tmp/wrong" <<EOS
#!/bin/bash
# The plugin has a filter that changes something.
exec "$NBDKIT" \$(case "\$*" in *copy-on-read*) echo --filter=offset;; esac) "\$@" \\
  \$(case "\$*" in *copy-on-read*) echo offset=512;; esac)
EOS
printf '#!/bin/bash\nexit 1\n' > "$tmp/broken"
chmod +x "$tmp/wrong" "$tmp/broken"
for server in wrong broken; do
  if NBDKIT="$tmp/$server" "$scale" --plugin "$PLUGIN" --ways plain --servers 2 \
       --reads 500 > "$tmp/out" 2>&1; then
    fail "$server: no error"
  fi
  cat "$tmp/out"
  if [ "$server" = wrong ]; then grep 'are not those of the golden image' "$tmp/out"; fi
done

# --- the commands of doc/SCALE.md, one after the other

. "$srcdir/lib/commands.sh"
cd "$tmp"
random_file golden.raw $((5 << 20))
qemu-img convert -f raw -O qcow2 golden.raw golden.qcow2

# boot_guest: reads all of the disk of the host.
boot_guest ()
{
  nbdcopy "nbd+unix:///?socket=$sockdir/host.sock" disk.raw
  cmp disk.raw golden.raw
}

sed -n '/^Commands$/,/^Figures$/s/^    //p' "$srcdir/../doc/SCALE.md" > commands
command="" number=0
while IFS= read -r line; do
  command+="${line%\\}"
  if [[ "$line" = *\\ ]]; then continue; fi
  number=$((number + 1))
  if [ "$number" = 4 ]; then
    boot_guest
    stop_nbdkit 3
    rm "$sockdir/host.sock"
  fi
  rm -f pid
  server_log[$number]="$tmp/$number.log"
  PATH="$tmp/bin:$PATH" bash -c "exec nbdkit -f -P pid ${command#nbdkit }" \
    < /dev/null > "$number.log" 2>&1 &
  server_pid[$number]=$!
  await -p $! test -s pid || fail "command $number does not start"
  command=""
done < <(sed -E "s,/tmp/([a-z]+\.sock),$sockdir/\1,g" commands)
[ "$number" = 4 ]
boot_guest
stop_nbdkit 4
check_clean overlay.qcow2
stop_nbdkit 2
stop_nbdkit 1
# It contains all of the disk.
qemu-img rebase -u -b '' overlay.qcow2
qemu-img compare -f qcow2 -F raw overlay.qcow2 golden.raw
