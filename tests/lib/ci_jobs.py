#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the jobs of a document as the systems do for which they are written.

usage: ci_jobs.py github|gitlab|kubernetes|slurm DOCUMENT

Commands run in bash (sh in Kubernetes) with the variables that the system sets, each job
in a directory of its own below jobs/, into which images/ of the current directory is
linked.  Only what is passed on (artifacts, volumes) is seen by other jobs.  What a
document uses and this program does not know is an error.  The exit status is that of the
job that comes last.  Its directory is jobs/last; clusters have reports/ for all jobs.

ci_jobs.py kubectl|sbatch ARGUMENT... stands for these programs.
"""

import fnmatch
import glob
import itertools
import os
import re
import shutil
import subprocess
import sys


def blocks(document, title):
    """What is indented in the section, by the name in the line before (NAME:), or None."""
    with open(document, encoding="utf-8") as f:
        text = f.read()
    section = re.search(r"^%s[^\n]*\n-+\n(.*?)(?=^[^\n]+\n[-=]+\n|\Z)" % title, text,
                        re.M | re.S)
    found = {}
    for before, block in re.findall(r"^(\S[^\n]*)?\n+((?:(?:    [^\n]*)?\n)+)",
                                    "\n" + section.group(1), re.M):
        name = before[:-1] if re.fullmatch(r"[a-z.]+:", before) else None
        if block.strip():
            assert name not in found, name
            found[name] = re.sub("^    ", "", block, flags=re.M)
    return found


class Jobs:
    """Runs commands in new directories."""

    def __init__(self):
        self.numbers = itertools.count(1)

    def directory(self, name=None):
        made = os.path.join("jobs", name or str(next(self.numbers)))
        os.makedirs(made)
        os.symlink(os.path.realpath("images"), os.path.join(made, "images"))
        return made


def run(argv, directory, **variables):
    print("+", argv[-1].strip(), variables, file=sys.stderr, flush=True)
    status = subprocess.run(argv, cwd=directory, stdin=subprocess.DEVNULL,
                            stdout=sys.stderr,
                            env={**os.environ, **{k: str(v) for k, v
                                                  in variables.items()}}).returncode
    print("= %d" % status, file=sys.stderr, flush=True)
    return status


def take(node, *keys):
    """The values of these keys; there may be no other ones."""
    assert set(node) <= set(keys), (node, keys)
    return [node.get(k) for k in keys]


# --- GitHub

def github(document):
    import yaml

    jobs, artifacts = Jobs(), {}
    workflow = yaml.safe_load(blocks(document, "GitHub Actions: a matrix")[None])
    for name, job in workflow["jobs"].items():
        steps, runs_on, _, strategy, needs, condition = take(
            job, "steps", "runs-on", "container", "strategy", "needs", "if")
        assert runs_on and (needs is None or needs in workflow["jobs"])
        assert condition == ("${{ !cancelled() }}" if needs else None)
        matrix = {"none": [None]}
        if strategy:
            matrix, fail_fast = take(strategy, "matrix", "fail-fast")
            assert fail_fast is False and len(matrix) == 1
        (key, values), = matrix.items()
        for value in values:
            context = {"matrix." + key: value, "strategy.job-total": len(values)}
            status = github_job(steps, context, artifacts,
                                jobs.directory(None if strategy else "last"))
    return status


def github_job(steps, context, artifacts, directory):
    status = 0

    def expand(text):
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda m: str(context[m.group(1)]), text)

    for step in steps:
        command, uses, given, condition = take(step, "run", "uses", "with", "if")
        assert condition in (None, "always()")
        given = {k: expand(v) if isinstance(v, str) else v
                 for k, v in (given or {}).items()}
        if status and not condition:
            continue
        if command:
            status = run(["bash", "-e", "-c", expand(command)], directory)
        elif uses.startswith("actions/upload-artifact@"):
            name, path = take(given, "name", "path")
            assert name not in artifacts
            artifacts[name] = [os.path.join(directory, path)]
        elif uses.startswith("actions/download-artifact@"):
            pattern, together = take(given, "pattern", "merge-multiple")
            assert together is True
            for name in fnmatch.filter(artifacts, pattern):
                copy(artifacts[name], directory)
        else:
            assert uses.startswith("actions/checkout@") and not given
    return status


def copy(paths, directory):
    for path in paths:
        if os.path.exists(path):
            shutil.copy(path, directory)


# --- GitLab

def gitlab(document):
    import yaml

    jobs, artifacts = Jobs(), []
    pipeline = yaml.safe_load(blocks(document, "GitLab: parallel")[None])
    failed = False
    for stage in pipeline.pop("stages"):
        for job in [j for j in pipeline.values() if j["stage"] == stage]:
            _, _, script, parallel, when, kept = take(
                job, "stage", "image", "script", "parallel", "when", "artifacts")
            assert when in (None, "always")
            if failed and not when:
                continue
            made = []
            for index in range(1, (parallel or 1) + 1):
                variables = {"CI_NODE_INDEX": index} if parallel else {}
                directory = jobs.directory(None if parallel else "last")
                copy(artifacts, directory)
                status = run(["bash", "-e", "-o", "pipefail", "-c", "\n".join(script)],
                             directory, CI_NODE_TOTAL=parallel or 1, **variables)
                failed |= status != 0
                keep, paths, _ = take(kept, "when", "paths", "reports")
                if status == 0 or keep == "always":
                    for pattern in paths or []:
                        made += glob.glob(os.path.join(directory, pattern))
            artifacts += made
    return status


# --- Kubernetes

MOUNTS = {"images": "images", "reports": "reports"}


def kubernetes(document):
    os.mkdir("reports")
    return cluster(blocks(document, "Kubernetes: an Indexed Job"), "kubectl")


def cluster(found, program):
    """Runs the commands, which have no name, where the files are."""
    commands = found.pop(None)
    for name, text in found.items():
        with open(name, "w", encoding="utf-8") as f:
            f.write(text)
    os.mkdir("jobs")
    stand_in = os.path.join("jobs", program)
    with open(stand_in, "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\nexec '%s' '%s' %s \"$@\"\n" % (
            sys.executable, os.path.realpath(__file__), program))
    os.chmod(stand_in, 0o755)
    os.environ["PATH"] = os.path.realpath("jobs") + ":" + os.environ["PATH"]
    return run(["bash", "-e", "-c", commands], ".")


def kubectl(argv):
    import yaml

    verb, *argv = argv
    if verb == "apply":
        assert argv[0] == "-f"
        with open(argv[1], encoding="utf-8") as f:
            job = yaml.safe_load(f)
        assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
        with open(os.path.join("jobs", job["metadata"]["name"]), "w") as log:
            log.write("complete" if run_pods(job["spec"]) else "failed")
        return 0
    if verb == "wait":
        condition, timeout, name = argv
        assert condition == "--for=condition=complete"
        assert re.fullmatch("--timeout=[0-9]+[smh]", timeout)
        with open(os.path.join("jobs", name.split("/")[1])) as log:
            return 0 if log.read() == "complete" else 1
    assert verb == "logs"
    return 0


def run_pods(spec):
    mode, completions, parallelism, limit, template = take(
        spec, "completionMode", "completions", "parallelism", "backoffLimit", "template")
    retries = 6 if limit is None else limit
    assert (mode == "Indexed") == (completions is not None)
    assert (parallelism or 1) <= (completions or 1)
    policy, (container,), volumes = take(template["spec"], "restartPolicy", "containers",
                                         "volumes")
    assert policy == "Never"
    claims = {v["name"]: MOUNTS[v["persistentVolumeClaim"]["claimName"]] for v in volumes}
    _, _, command, mounts = take(container, "name", "image", "command", "volumeMounts")
    for m in mounts:
        name, path, _ = take(m, "name", "mountPath", "readOnly")
        command = [re.sub(r"(?<!\S)%s(?=[/ ])" % path, os.path.realpath(claims[name]), c)
                   for c in command]
    for index in range(completions or 1):
        variables = {"JOB_COMPLETION_INDEX": index} if mode else {}
        while run(command, ".", **variables) != 0:
            retries -= 1
            if retries < 0:
                return False
    return True


# --- Slurm

def slurm(document):
    os.mkdir("reports")
    return cluster(blocks(document, "Slurm: an array"), "sbatch")


def sbatch(argv):
    number = 100
    while os.path.exists("jobs/%d" % number):
        number += 1
    print(number if argv[0] == "--parsable" else "Submitted batch job %d" % number,
          flush=True)
    os.mkdir("jobs/%d" % number)
    if argv[0] == "--parsable":
        script, = argv[1:]
        with open(script, encoding="utf-8") as f:
            text = f.read()
        options = dict(re.findall("^#SBATCH --([a-z-]+)=(.*)$", text, re.M))
        array, cpus = take(options, "array", "cpus-per-task")
        first, last = map(int, array.split("-"))
        for task in range(first, last + 1):
            run(["bash", script], ".", SLURM_JOB_ID=number + task,
                SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=task,
                SLURM_ARRAY_TASK_MIN=first, SLURM_ARRAY_TASK_MAX=last,
                SLURM_ARRAY_TASK_COUNT=last - first + 1, SLURM_CPUS_PER_TASK=cpus)
        return 0
    dependency, wrap, command = argv
    assert wrap == "--wrap"
    assert os.path.exists("jobs/" + re.fullmatch("--dependency=afterany:([0-9]+)",
                                                 dependency).group(1))
    # sbatch itself succeeds; the test wants to know of the job.
    return run(["sh", "-c", command], ".", SLURM_JOB_ID=number)


def main():
    system, *arguments = sys.argv[1:]
    return {"github": github, "gitlab": gitlab, "kubernetes": kubernetes, "slurm": slurm,
            "kubectl": lambda *a: kubectl(a), "sbatch": lambda *a: sbatch(a)
            }[system](*arguments)


sys.exit(main())
