# SPDX-License-Identifier: BSD-3-Clause
"""lab/dashboard, after what it needs is installed and built: see its opening comment.

Prometheus answers the queries, so what is drawn is what Grafana would get.  Grafana's
variables are replaced; "All" is what they are at first.
"""

import argparse
import http.server
import json
import math
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import nbd

LAB = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.append(LAB)

from common import Server, gnuplot, quote

DASHBOARD = os.path.join(os.path.dirname(LAB), "monitoring/dashboard.json")
HOST = "host1"
RATE = "8s"                     # $__rate_interval, for a scrape each second
NOTHING = "0 with lines lc rgb '#ffffff' notitle"
MOST = 7                        # curves of a panel
COLOURS = ("#1b7fb5", "#d95f02", "#7570b3", "#1b9e77", "#e7298a", "#a6761d", "#666666")
WIDTH, CELL = 60, 30            # pixels of one of Grafana's 24 columns, and of a row
# How an axis shows a unit of Grafana: a word, and gnuplot's format.
UNITS = {"ops": ("per second", "%g"), "Bps": ("bytes per second", "%.1b %BB"),
         "s": ("", "%.1s %cs"), "short": ("", "%g"), "bytes": ("", "%.0b %BB"),
         "percentunit": ("of 1", "%g")}


def fail(text):
    sys.exit("dashboard: " + text)


# --- servers and clients

def make_image(path, **options):
    args = [x for pair in options.items() for x in ("-o", "%s=%s" % pair)]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *args, path, "256M"],
                   check=True)


def damage(path):
    """The first L2 entry names no cluster."""
    with open(path, "r+b") as f:
        f.seek(40)
        f.seek(int.from_bytes(f.read(8), "big"))
        table = int.from_bytes(f.read(8), "big") & ((1 << 56) - 512)
        f.seek(table)
        f.write((1 << 63 | 512).to_bytes(8, "big"))


def connect(server, export):
    h = nbd.NBD()
    h.connect_uri(server.uri(export))
    return h


class Client(threading.Thread):
    """Reads and writes at random, with pauses, until the end."""

    def __init__(self, server, export, end, reads, writes, size, pause):
        super().__init__()
        self.h, self.end = connect(server, export), end
        self.mix, self.size, self.pause = ["r"] * reads + ["w"] * writes, size, pause
        self.rng = random.Random(export)

    def run(self):
        data, blocks = os.urandom(self.size), (128 << 20) // self.size
        begin = time.monotonic()
        while time.monotonic() < self.end:
            # (Some hours are busier than others.)
            busy = 1.2 + math.sin((time.monotonic() - begin) / 9 + len(data))
            for what in self.mix:
                offset = self.rng.randrange(blocks) * self.size
                if what == "r":
                    self.h.pread(self.size, offset)
                else:
                    self.h.pwrite(data, offset)
            if "w" in self.mix and self.rng.random() < 0.2:
                self.h.flush()
            time.sleep(self.rng.expovariate(busy / self.pause))
        self.h.shutdown()


def read_damaged(server, export, end):
    while time.monotonic() < end:
        h = connect(server, export)
        for _ in range(random.randrange(1, 4)):
            try:
                h.pread(512, 0)
            except nbd.Error:
                pass
        h.shutdown()
        time.sleep((end - time.monotonic()) / 3 + 1)


def work(servers, seconds):
    end = time.monotonic() + seconds
    vm, ci = servers
    clients = [Client(vm, "web.qcow2", end, 8, 2, 4096, 0.02),
               Client(vm, "db.qcow2", end, 3, 5, 16384, 0.04),
               Client(vm, "db.qcow2", end, 2, 2, 8192, 0.05),
               Client(ci, "", end, 1, 1, 65536, 0.1)]
    for c in clients:
        c.start()
    time.sleep(seconds / 2)
    read_damaged(vm, "old.qcow2", end)
    for c in clients:
        c.join()


# --- Prometheus

def serve_files(directory):
    """As node_exporter does.  Returns the port."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            for name in sorted(os.listdir(directory)):
                if name.endswith(".prom"):
                    with open(os.path.join(directory, name), "rb") as f:
                        self.wfile.write(f.read())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Prometheus:
    def __init__(self, directory, port):
        config = os.path.join(directory, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [{
                "job_name": "node", "honor_labels": True, "static_configs": [{
                    "targets": ["127.0.0.1:%d" % port], "labels": {"instance": HOST}}]}]}, f)
        self.url = "http://127.0.0.1:%d" % free_port()
        with open(os.path.join(directory, "prometheus.log"), "wb") as log:
            self.process = subprocess.Popen(
                ["prometheus", "--config.file=" + config,
                 "--storage.tsdb.path=" + os.path.join(directory, "data"),
                 "--web.listen-address=" + self.url.partition("//")[2]],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(log.name, encoding="utf-8") as f:
                    fail("prometheus does not start: " + f.read()[-500:])
            time.sleep(0.1)

    def is_ready(self):
        try:
            with urllib.request.urlopen(self.url + "/-/ready"):
                return True
        except OSError:
            return False

    def query(self, expr, begin, end):
        """A list of (labels, [(seconds since BEGIN, value)])."""
        query = urllib.parse.urlencode({"query": expr, "start": begin, "end": end,
                                        "step": max((end - begin) / 60, 1)})
        with urllib.request.urlopen(self.url + "/api/v1/query_range?" + query) as answer:
            result = json.load(answer)["data"]["result"]
        return [(r["metric"], [(t - begin, float(v)) for t, v in r["values"]
                               if math.isfinite(float(v))]) for r in result]

    def stop(self):
        self.process.terminate()
        self.process.wait()


# --- the picture

def legend(target, labels):
    return re.sub(r"{{(\w+)}}", lambda m: labels.get(m[1], ""),
                  target["legendFormat"].replace("{{instance}} ", ""))


def curves(prometheus, panel, begin, end):
    """A list of (legend, points), those that matter most first."""
    found = []
    for target in panel["targets"]:
        expr = re.sub(r"\$(instance|server|image)\b", ".*", target["expr"])
        expr = expr.replace("$__rate_interval", RATE)
        found += [(legend(target, labels), points)
                  for labels, points in prometheus.query(expr, begin, end)]
    if not found:
        fail("%s: Prometheus knows nothing of what this panel shows" % panel["title"])
    found = [c for c in found if any(v for _, v in c[1])]
    return sorted(found, key=lambda c: -sum(v for _, v in c[1]))[:MOST]


def plot(n, panel, found, seconds):
    word = UNITS[panel["fieldConfig"]["defaults"]["unit"]]
    script = ["set title %s" % quote(panel["title"]),
              "set xrange [0:%g]" % seconds,
              "set yrange [0:%g]" % (1.08 * max([v for _, points in found
                                                 for _, v in points], default=1)),
              "set ylabel %s" % quote(word[0]), "set format y %s" % quote(word[1])]
    if panel["type"] == "stat":
        return script + [
            "unset tics", "unset border", "set ylabel ''",
            *("set label %d %s at graph 0.05, graph %g tc rgb '#b2182b' font ',14'" %
              (i + 1, quote(name), 0.85 - 0.15 * i) for i, (name, _) in enumerate(found)),
            "set yrange [0:1]", "plot " + NOTHING, "unset label", "set tics", "set border"]
    plots = []
    for i, (name, points) in enumerate(found):
        data = "$panel%d_%d" % (n, i)
        script += [data + " << END"] + ["%g %g" % p for p in points] + ["END"]
        plots.append("%s with lines lw 1.5 lc rgb '%s' title %s" %
                     (data, COLOURS[i], quote(name)))
    return script + ["plot " + ", ".join(plots or [NOTHING])]


def draw(prometheus, begin, end, path):
    with open(DASHBOARD, encoding="utf-8") as f:
        panels = json.load(f)["panels"]
    height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in panels)
    script = ["set terminal svg size %d,%d font 'sans,11' background '#ffffff'" %
              (24 * WIDTH, height * CELL), "set output " + quote(path), "set encoding utf8",
              "set multiplot", "set grid lc rgb '#dddddd'", "set tmargin 2.5",
              "set bmargin 2.5", "set lmargin 12", "set rmargin 30",
              "set key at graph 1.02, graph 1 left top Left reverse samplen 1.5 noenhanced",
              "set title noenhanced", "set xtics format '%.0f s'"]
    for n, panel in enumerate(panels):
        at = panel["gridPos"]
        script += ["set origin %g,%g" % (at["x"] / 24, 1 - (at["y"] + at["h"]) / height),
                   "set size %g,%g" % (at["w"] / 24, at["h"] / height)]
        script += plot(n, panel, curves(prometheus, panel, begin, end), end - begin)
    gnuplot("\n".join(script + ["unset multiplot", "set output"]) + "\n")


# ---

def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = fail
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", default=os.path.join(os.path.dirname(LAB),
                                                      "doc/plots/dashboard.svg"))
    args = parser.parse_args()
    if not 1 <= args.seconds <= 86400:
        fail("--seconds takes 1 to 86400")
    nbdkit = os.environ.get("NBDKIT", "nbdkit")
    plugin = os.path.abspath(args.plugin) if "/" in args.plugin else args.plugin
    with tempfile.TemporaryDirectory() as work_dir:
        os.mkdir(work_dir + "/images")
        for name in "web", "db", "old":
            make_image("%s/images/%s.qcow2" % (work_dir, name))
        make_image(work_dir + "/ci.qcow2")
        subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -q 0 64k",
                        work_dir + "/images/old.qcow2"], check=True,
                       stdout=subprocess.DEVNULL)
        damage(work_dir + "/images/old.qcow2")
        servers = [
            Server(nbdkit, work_dir, name, plugin, what,
                   "stats=%s/%s.prom" % (work_dir, name), "stats-format=prometheus")
            for name, what in (("vm", "dir=" + work_dir + "/images"),
                               ("ci", work_dir + "/ci.qcow2"))]
        prometheus = Prometheus(work_dir, serve_files(work_dir))
        try:
            begin = time.time()
            work(servers, args.seconds)
            draw(prometheus, begin, begin + args.seconds, os.path.abspath(args.out))
        finally:
            prometheus.stop()
            for server in servers:
                server.stop()
    print("written: " + args.out)


main()
