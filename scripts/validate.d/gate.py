# SPDX-License-Identifier: BSD-3-Clause
"""Decides with a policy whether an image is accepted, in little memory and time.

Nothing is opened but the image itself.  A stream is read to its end, because its length
counts, and is not stored; it is refused as soon as that is certain.
"""

import json
import os
import select
import stat
import subprocess
import time

import formats
from header import BASICS, LARGEST_CLUSTER, Header, first_cluster
from programs import Trouble, ended_by_itself, read_text

SECONDS = 10
CHUNK = 1 << 20


def judge(name, policy, runner):
    """The findings about the image; none: it is accepted."""
    if name == "-":
        return judge_stream(0, policy, runner.options.timeout)
    fd = runner.open()
    kind = os.fstat(fd).st_mode
    if stat.S_ISFIFO(kind):
        os.set_blocking(fd, True)
        return judge_stream(fd, policy, runner.options.timeout)
    if not stat.S_ISREG(kind) and not stat.S_ISBLK(kind):
        raise Trouble("it is not a file, a block device or a pipe")
    found, h = judge_file(fd, policy)
    return found or judge_with_plugin(h, runner)


# --- files

def judge_file(fd, policy):
    length = os.lseek(fd, 0, os.SEEK_END)
    head = os.pread(fd, BASICS, 0)
    h = Header(os.pread(fd, beginning(head), 0))
    found = policy.judge_header(h)
    if not h.faults:
        found += policy.judge_end(os.pread(fd, formats.END, max(length - formats.END, 0)))
    return found + policy.judge_length(h, length), h


def beginning(head):
    """How many bytes are judged first."""
    return max(min(first_cluster(head), LARGEST_CLUSTER), formats.BEGINNING)


def run(command, log, fds):
    """The exit status; None: it took too long."""
    with open(log, "wb") as err:
        try:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err,
                                 pass_fds=fds)
        except FileNotFoundError:
            raise Trouble("%s is not installed" % command[0])
    try:
        return p.wait(SECONDS)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        return None


def judge_with_plugin(h, runner):
    """The plugin reads the lists that the header names, and the LUKS header.  With
    untrusted=true it refuses what takes much memory.  It must understand the image as we
    do."""
    out = os.path.join(runner.tmp, "info.json")
    # (Of -U -, nbdkit leaves a directory in /tmp if the plugin refuses the image.)
    command = [runner.options.nbdkit, "-U", runner.sock, runner.options.plugin,
               "file=" + runner.file, "untrusted=true", "lock=false",
               "serve=false", "info=" + out, "--run", "true"]
    log = os.path.join(runner.tmp, "log")
    status = run(command, log, runner.fds)
    if status is None:
        return [("too-slow", "describing it took longer than %d seconds" % SECONDS)]
    ended_by_itself(runner.options.nbdkit, status)
    if status != 0 or not os.path.exists(out):
        if "cannot open plugin" in read_text(log):
            raise Trouble(read_text(log))
        return [("unsupported", runner.named(read_text(log)).strip())]
    with open(out, encoding="utf-8", errors="surrogateescape") as f:
        size = json.load(f)["virtual-size"]
    if size != h.size & ~511:
        return [("unsupported", "its size is understood in two ways: %d and %d bytes"
                 % (size, h.size))]
    return []


# --- streams

def read_some(fd, n, end, what, seconds):
    """At most N bytes; none at the end.  After END, WHAT took longer than SECONDS."""
    if seconds is not None:
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise Trouble("%s did not arrive within %g seconds" % (what, seconds))
    return os.read(fd, n)


def read_until(fd, head, n, end):
    while len(head) < n:
        data = read_some(fd, n - len(head), end, "the header", SECONDS)
        if not data:
            break
        head += data
    return head


def judge_stream(fd, policy, timeout):
    begin = time.monotonic()
    head = read_until(fd, b"", BASICS, begin + SECONDS)
    head = read_until(fd, head, beginning(head), begin + SECONDS)
    h = Header(head)
    length, tail = len(head), head
    found = policy.judge_header(h) + policy.judge_length(h, length, False)
    while not found:
        data = read_some(fd, CHUNK, begin + (timeout or 0), "the stream", timeout)
        length += len(data)
        if not data:
            return policy.judge_end(tail[-formats.END:]) + policy.judge_length(h, length)
        found = policy.judge_length(h, length, False)
        tail = data if len(data) >= formats.END else tail[-formats.END:] + data
    return found
