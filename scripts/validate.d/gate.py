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
        return judge_stream(0, policy)
    # A pipe without a writer must not make us wait.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        kind = os.fstat(fd).st_mode
        if stat.S_ISFIFO(kind):
            os.set_blocking(fd, True)
            return judge_stream(fd, policy)
        if not stat.S_ISREG(kind) and not stat.S_ISBLK(kind):
            raise Trouble("it is not a file, a block device or a pipe")
        found, h = judge_file(fd, policy)
    finally:
        os.close(fd)
    return found or judge_with_plugin(name, h, runner)


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


def run(command, log):
    """The exit status; None: it took too long."""
    with open(log, "wb") as err:
        try:
            p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        except FileNotFoundError:
            raise Trouble("%s is not installed" % command[0])
    try:
        return p.wait(SECONDS)
    except subprocess.TimeoutExpired:
        p.kill()
        p.wait()
        return None


def judge_with_plugin(name, h, runner):
    """The plugin reads the lists that the header names, and the LUKS header.  With
    untrusted=true it refuses what takes much memory.  It must understand the image as we
    do."""
    out = os.path.join(runner.tmp, "info.json")
    command = [runner.options.nbdkit, "-U", "-", runner.options.plugin,
               "file=" + os.path.abspath(name), "untrusted=true", "lock=false",
               "serve=false", "info=" + out, "--run", "true"]
    log = os.path.join(runner.tmp, "log")
    status = run(command, log)
    if status is None:
        return [("too-slow", "describing it took longer than %d seconds" % SECONDS)]
    ended_by_itself(runner.options.nbdkit, status)
    if status != 0 or not os.path.exists(out):
        if "cannot open plugin" in read_text(log):
            raise Trouble(read_text(log))
        return [("unsupported", read_text(log).strip())]
    with open(out, encoding="utf-8", errors="surrogateescape") as f:
        size = json.load(f)["virtual-size"]
    if size != h.size & ~511:
        return [("unsupported", "its size is understood in two ways: %d and %d bytes"
                 % (size, h.size))]
    return []


# --- streams

def read_some(fd, n, deadline):
    """At most N bytes; none at the end."""
    if deadline is not None:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise Trouble("the header did not arrive within %d seconds" % SECONDS)
    return os.read(fd, n)


def read_until(fd, head, n, deadline):
    while len(head) < n:
        data = read_some(fd, n - len(head), deadline)
        if not data:
            break
        head += data
    return head


def judge_stream(fd, policy):
    deadline = time.monotonic() + SECONDS
    head = read_until(fd, b"", BASICS, deadline)
    head = read_until(fd, head, beginning(head), deadline)
    h = Header(head)
    length, tail = len(head), head
    found = policy.judge_header(h) + policy.judge_length(h, length, False)
    while not found:
        data = read_some(fd, CHUNK, None)
        length += len(data)
        if not data:
            return policy.judge_end(tail[-formats.END:]) + policy.judge_length(h, length)
        found = policy.judge_length(h, length, False)
        tail = data if len(data) >= formats.END else tail[-formats.END:] + data
    return found
