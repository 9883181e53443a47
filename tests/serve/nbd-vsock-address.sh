#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
#
# nbd+vsock URIs: the plugin connects to this CID and port, or NBD's port without one, for
# an image, a backing file, and one that a header names.  A host that does not answer is
# given up after connect-timeout.  (See nbd-vsock-image.sh for one that does.)

. "${srcdir:-$(dirname "$0")/..}/lib/functions.sh"
requires_tools
requires strace -f -o /dev/null true
requires "$python" -c 'import socket; socket.socket(socket.AF_VSOCK)'

# reaches PORT PARAMETER...: the server refuses to start, but it has tried that.
reaches ()
{
  local port="$1"
  shift

  NBDKIT="$tmp/traced" refused 'nbd\+vsock://1[:/].*cannot connect' "$@" connect-timeout=1
  cat "$tmp/trace"
  grep -q "sa_family=AF_VSOCK, svm_cid=\(VMADDR_CID_LOCAL\|0x1\), svm_port=$port," \
    "$tmp/trace" || fail "$*: no connection to CID 1, port $port"
}

cat > "$tmp/traced" <<EOS
#!/bin/bash
exec strace -f -qq -e trace=connect -o "$tmp/trace" "$NBDKIT" "\$@"
EOS
chmod +x "$tmp/traced"

make_image "$tmp/disk" 1M
qemu-img create -q -f qcow2 -u -F raw -b nbd+vsock://1:5055/base "$tmp/overlay" 1M
reaches 0x13bf nbd+vsock://1:5055/disk
reaches 0x2a39 nbd+vsock://1/
reaches 0x13bf "$tmp/disk" backing=nbd+vsock://1:5055/ backing-format=raw
reaches 0x13bf "$tmp/overlay" allow-uri=nbd+vsock://1:5055/
refused 'allow-uri=' "$tmp/overlay"
refused 'allow-uri=' "$tmp/overlay" allow-uri=nbd+vsock://1:505/
refused 'allow-uri=' "$tmp/overlay" allow-uri=nbd+vsock://2:5055/
