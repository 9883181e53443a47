#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# An image behind HTTP (nginx), and nbdkit's curl plugin: it is served read-only, and it
# can be the backing file of an image here.  What was flushed to that one is there after
# our server, that nbdkit, or nginx was killed.

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
. "$srcdir/lib/engines.sh"
requires_tools
requires nbdcopy --version
requires "$NBDKIT" curl --dump-plugin
nginx="$(command -v nginx)" || skip "no nginx"
requires_network

mkdir "$tmp/www" "$tmp/nginx"
random_file "$tmp/base.raw" 6000000
truncate -s 8M "$tmp/base.raw"
qemu-img convert -c -f raw -O qcow2 "$tmp/base.raw" "$tmp/www/base.qcow2"
cat > "$tmp/nginx.conf" <<END
$([ "$(id -u)" != 0 ] || echo "user root;")
daemon off;
master_process off;
pid $tmp/nginx/pid;
error_log stderr;
events { }
http {
  access_log off;
  client_body_temp_path $tmp/nginx;
  proxy_temp_path $tmp/nginx;
  fastcgi_temp_path $tmp/nginx;
  uwsgi_temp_path $tmp/nginx;
  scgi_temp_path $tmp/nginx;
  server { listen 127.0.0.1:8080; root $tmp/www; }
}
END

# answers: is that nginx?
answers ()
{
  # shellcheck disable=SC2016
  "$NBDKIT" -r -U - curl http://127.0.0.1:8080/base.qcow2 --run 'nbdinfo --size "$uri"'
}

start_engine ()
{
  if [ -z "${server_pid[nginx]:-}" ]; then
    start_daemon nginx "$nginx" -p "$tmp/nginx" -e stderr -c "$tmp/nginx.conf"
    await_daemon nginx answers
  fi
  PLUGIN=curl start_nbdkit_as nbd -r -- http://127.0.0.1:8080/base.qcow2
  far_uri="$uri"
}

# Read-only.
start_engine
start_nbdkit "$far_uri" lock=false
nbdsh_run -c 'assert h.is_read_only()'
nbdcopy "$uri" "$tmp/copy.raw"
cmp "$tmp/copy.raw" "$tmp/base.raw"
stop_nbdkit
grep 'served read-only: .*does not allow' "$tmp/main.log"

# Below an image here.
top="$tmp/top.qcow2"
start_nbdkit "$top" create=auto backing-file="$far_uri" backing-format=qcow2
stop_nbdkit
for victim in main nbd nginx; do
  [ -n "${server_pid[nbd]:-}" ] || start_engine
  start_nbdkit "$top" backing="$far_uri" reconnect=1
  how=()
  if [ "$victim" != main ]; then how=(--far); fi
  model crash "$uri" "$tmp/state" --pid "${server_pid[$victim]}" --ops "$engine_ops" \
    --connections 2 --weights flush=5 "${how[@]}"
  kill_part "$victim"
  if [ "$victim" != main ]; then stop_main; fi
  if [ "$victim" = nginx ]; then kill_part nbd; fi
  [ -n "${server_pid[nbd]:-}" ] || start_engine
  check_leaks_only "$top"
  # (QEMU reaches the base by its name.)
  qemu-img convert -f qcow2 -O raw "$top" "$tmp/judged.raw"
  model judge "$tmp/state" "$tmp/judged.raw" --base "$tmp/base.raw"
done

# Copied from it, the image needs it no more.
start_nbdkit "$top" allow-uri="$far_uri" check=repair flatten=true
stop_nbdkit
kill_part nbd
kill_part nginx
check_clean "$top"
same_as_raw "$top" "$tmp/judged.raw"
