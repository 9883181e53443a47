# SPDX-License-Identifier: BSD-3-Clause
"""Where it was measured, and with what."""

import os
import platform
import re
import subprocess
import time


def output(*argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() or done.stderr.strip()


def first_line(*argv):
    return (output(*argv).splitlines() or [""])[0]


def field(path, key):
    try:
        with open(path) as f:
            for line in f:
                name, _, value = line.partition(":")
                if name.strip() == key:
                    return value.strip()
    except OSError:
        pass
    return ""


def memory(what="MemTotal"):
    return int(field("/proc/meminfo", what).split()[0]) * 1024


def dirty():
    """Bytes that the host has to write to its disks."""
    return memory("Dirty") + memory("Writeback")


def read_ahead(path):
    """KiB that the host reads ahead in files there, or None: it has a part in how large
    their folios are."""
    dev = os.stat(path).st_dev
    for queue in "queue", "../queue":
        try:
            with open("/sys/dev/block/%d:%d/%s/read_ahead_kb"
                      % (os.major(dev), os.minor(dev), queue)) as f:
                return int(f.read())
        except OSError:
            pass
    return None


def plugin_features(nbdkit, plugin):
    """What --dump-plugin says."""
    features = {}
    for line in output(nbdkit, plugin, "--dump-plugin").splitlines():
        key, equals, value = line.partition("=")
        if equals:
            features[key] = value
    return features


def cipher_speed():
    """AES-256-XTS in sectors of 512 bytes, one core: MiB per second."""
    text = output("openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "512",
                  "-evp", "aes-256-xts")
    found = re.search(r"(?im)^aes-256-xts\s+([0-9.]+)k", text)
    return round(float(found.group(1)) * 1000 / (1 << 20)) if found else None


def describe(config, features):
    cpus = os.cpu_count()
    d = {
        "date": time.strftime("%Y-%m-%d"),
        "command": os.environ.get("lab_command", ""),
        "cpu": field("/proc/cpuinfo", "model name") or platform.machine(),
        "cpus": cpus,
        "memory_mib": memory() >> 20,
        "kernel": platform.release(),
        "filesystem": output("findmnt", "-n", "-o", "FSTYPE", "-T", config.work),
        "read_ahead_kib": read_ahead(config.work),
        "load_before": os.getloadavg()[0],
        "nbdkit": first_line(config.nbdkit, "--version"),
        "qemu": first_line("qemu-nbd", "--version"),
        "fio": first_line("fio", "--version"),
        "nbdcopy": first_line("nbdcopy", "--version"),
        "plugin": "%s %s" % (features.get("name", "?"), features.get("version", "?")),
        "commit": output("git", "-C", config.top, "describe", "--always", "--dirty")
                  if os.path.exists(os.path.join(config.top, ".git")) else "",
    }
    return d


def lines(d):
    """For people."""
    yield "%s, %s" % (d["date"], d["command"])
    yield "%s, %d CPUs, %d MiB, Linux %s, %s%s" % (
        d["cpu"], d["cpus"], d["memory_mib"], d["kernel"], d["filesystem"],
        d["read_ahead_kib"] and ", read-ahead %d KiB" % d["read_ahead_kib"] or "")
    yield "%s; %s; %s; %s" % (d["nbdkit"], d["qemu"], d["fio"], d["nbdcopy"])
    yield "plugin %s%s" % (d["plugin"], d["commit"] and " (%s)" % d["commit"])
    if d.get("aes_256_xts_mib_per_s_and_core"):
        yield ("openssl speed: AES-256-XTS, sectors of 512 bytes: %d MiB/s on one core"
               % d["aes_256_xts_mib_per_s_and_core"])
    if d["load_before"] > 0.5 * d["cpus"]:
        yield ("NOTE: the machine was busy before it began (load %.1f): "
               "don't trust these figures" % d["load_before"])
