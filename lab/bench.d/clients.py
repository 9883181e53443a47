# SPDX-License-Identifier: BSD-3-Clause
"""The clients that load a server, and what they measure.

Each function here returns a client: a function of a running server that returns a number
(requests per second, bytes per second, seconds).
"""

import json
import os
import subprocess
import sys
import time

import nbd

from servers import Server, ServerError

HERE = os.path.dirname(os.path.abspath(__file__))

# Longer than any client should take, in seconds: then something hangs.
HANGS = 300


def enough(config):
    """When a sample that has a fixed amount of work ends, even if there is more to do, in
    seconds: the rate so far counts."""
    return 20 * config.seconds


class ClientError(Exception):
    pass


def direction(rw):
    for word in ("write", "trim"):
        if rw.endswith(word):
            return word
    return "read"


def run_fio(server, jobs):
    """Runs jobs (a list of dictionaries with fio's options) at the same time.

    Returns fio's results for the main direction of each.  Note: fio's engine opens
    a connection for each job that may write, whatever the job does.
    """
    argv = ["fio", "--output-format=json", "--ioengine=nbd", "--uri=" + server.uri,
            "--thread", "--group_reporting", "--randrepeat=0"]
    for i, job in enumerate(jobs):
        argv += ["--name=job%d" % i, "--new_group"]
        if "runtime" not in job:
            argv += ["--runtime=%dms" % (enough(server.config) * 1000)]
        argv += ["--%s=%s" % option for option in job.items()]
    try:
        # fio leaves files behind in the current directory if it dies.
        done = subprocess.run(argv, capture_output=True, text=True,
                              timeout=HANGS + enough(server.config),
                              cwd=server.config.sockets)
    except subprocess.TimeoutExpired:
        raise ClientError("fio did not end") from None
    server.check_alive()
    start = done.stdout.find("{")
    if done.returncode != 0 or start < 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise ClientError("fio: %s" % (lines[-1] if lines else "failed"))
    results = json.loads(done.stdout[start:])["jobs"]
    for result in results:
        if result["error"]:
            raise ClientError("fio: %s" % os.strerror(result["error"]))
    return [result[direction(job["rw"])] for job, result in zip(jobs, results)]


def job(rw, bs, depth, size, jobs=1, seconds=None, ios=None, **options):
    """One of fio's jobs: for so many seconds, or so many requests, or the disk once."""
    o = {"rw": rw, "bs": bs, "iodepth": depth, "size": size, "numjobs": jobs}
    if seconds:
        o["time_based"] = 1
        o["runtime"] = "%dms" % (seconds * 1000)
        # Any place, as often as chance wants: a map of the places costs time.
        o["norandommap"] = 1
    elif ios:
        o["number_ios"] = ios
    o.update(options)
    return o


def iops(*args, companion=None, **options):
    """Requests per second; companion: a job that goes on beside it."""
    measured = job(*args, **options)

    def client(server):
        jobs = [measured] + ([companion] if companion else [])
        return run_fio(server, jobs)[0]["iops"]
    return client


def bandwidth(*args, **options):
    """MiB per second."""
    measured = job(*args, **options)

    def client(server):
        return run_fio(server, [measured])[0]["bw_bytes"] / (1 << 20)
    return client


def copy(size):
    """nbdcopy of the whole disk to nowhere: MiB per second."""
    def client(server):
        start = time.monotonic()
        progress = os.path.join(server.config.sockets, "progress")
        with open(progress, "w") as f:
            process = subprocess.Popen(
                ["nbdcopy", "--progress=%d" % f.fileno(), server.uri, "null:"],
                pass_fds=[f.fileno()], stderr=subprocess.PIPE, text=True)
        part = 1
        try:
            _, error = process.communicate(timeout=enough(server.config))
            seconds = time.monotonic() - start
            if process.returncode != 0:
                raise ClientError("nbdcopy: " + error.strip())
        except subprocess.TimeoutExpired:
            seconds = time.monotonic() - start
            process.kill()
            process.communicate()
            # Lines that say N/100.
            with open(progress) as f:
                part = int((f.read().split() or ["0"])[-1].partition("/")[0]) / 100
            if part == 0:
                raise ClientError("nbdcopy: not 1 percent in %.0f s" % seconds) from None
        finally:
            process.kill()
        server.check_alive()
        return part * size / seconds / (1 << 20)
    return client


def _copy_all(server, size, *argv):
    start = time.monotonic()
    done = subprocess.run(["nbdcopy", *argv], capture_output=True, text=True,
                          timeout=HANGS)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        raise ClientError("nbdcopy: " + done.stderr.strip())
    server.check_alive()
    return size / seconds / (1 << 20)


def copy_to_file(size, path):
    """nbdcopy of the whole disk to a raw file that does not exist: MiB per second."""
    def client(server):
        return _copy_all(server, size, server.uri, path)
    return client


def copy_from_file(size, path):
    """nbdcopy of a raw file to the disk, which is empty."""
    def client(server):
        return _copy_all(server, size, "--destination-is-zero", path, server.uri)
    return client


def copy_to_server(size, image):
    """nbdcopy of the disk to that of another server of the same kind.  image: makes the
    other one's empty image, by kind."""
    def client(server):
        with Server(server.config, server.kind, image(server.kind),
                    name="second") as other:
            return _copy_all(other, size, "--destination-is-zero", server.uri, other.uri)
    return client


def first_read():
    """Seconds until the first read is answered (of a server that was just started)."""
    def client(server):
        start = time.monotonic()
        while True:
            server.check_alive()
            if time.monotonic() - start > HANGS:
                raise ServerError("%s: not ready" % server.name)
            if os.path.exists(server.sock):
                h = nbd.NBD()
                try:
                    h.connect_unix(server.sock)
                    break
                except nbd.Error:
                    pass
            time.sleep(0.0005)
        h.pread(4096, 0)
        seconds = time.monotonic() - start
        h.shutdown()
        return seconds
    return client


def _zeroes(server, options):
    return subprocess.Popen(
        [sys.executable, "-B", os.path.join(HERE, "zeroes.py"), server.uri] + options,
        stdout=subprocess.PIPE, text=True)


def zeroes(request, depth):
    """Zero requests per second: the whole disk once, at random places."""
    def client(server):
        process = _zeroes(server, ["--request=%d" % request, "--depth=%d" % depth])
        out, _ = process.communicate(timeout=HANGS)
        if process.returncode != 0:
            raise ClientError("zero requests failed")
        return float(out)
    return client


def during_zeroes(client, request, rate, seconds):
    """What client measures while zeroes are written at a rate (per second)."""
    def during(server):
        process = _zeroes(server, ["--request=%d" % request, "--rate=%g" % rate,
                                   "--seconds=%g" % (seconds + 0.5)])
        try:
            value = client(server)
        finally:
            process.communicate(timeout=HANGS)
        if process.returncode != 0:
            raise ClientError("zero requests failed")
        return value
    return during
