# SPDX-License-Identifier: BSD-3-Clause
"""Programs that are run, servers that are started, and what happens to both, and to
files that are not complete, when the user interrupts.

Nothing here survives the command: servers end with it, and the private directory and
what was registered with remove_at_end is removed, also after SIGINT, SIGTERM or SIGHUP.
"""

import os
import sys

# The modules signal and socket also define each constant as an enumeration, which takes
# longer than all that the smallest commands do here.
try:
    import _signal as signal
except ImportError:
    import signal
try:
    import _socket as socket
except ImportError:
    import socket

from cli import About, Failure

nbdkit, plugin = "nbdkit", "qcow2"      # --nbdkit and --plugin change them
# Then the plugin proposes options of ours, not its parameters.
os.environ["NBDKIT_QCOW2_IMG"] = "1"
# Names the descriptor to which the plugin writes how far it is.
PROGRESS = "NBDKIT_QCOW2_PROGRESS"

TIMELY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE = 30                   # seconds that a server has to end

connections = []                # descriptors of sockets to servers
_children = []                  # processes that have not been waited for
_files = {}                     # to be removed unless they are kept: the user's name
_data_files = {}                # of images among these: the name of the data file
_uris = {}                      # with secrets, and what is shown instead
_directories = []
_drawn = False                  # is there a line on the terminal that shows progress?
SOCKET_NAME = 90                # bytes; names of sockets have at most 107


def until_interrupted(function):
    """Calls it, and cleans up.  After a signal this process ends by the same one, so
    that a shell knows.  (No exception: libnbd ignores those of its callbacks.)"""
    for s in TIMELY:
        if signal.getsignal(s) != signal.SIG_IGN:
            signal.signal(s, interrupt)
    signal.signal(signal.SIGPIPE, interrupt)
    try:
        return function()
    finally:
        clean_up()


def interrupt(number, _frame):
    clean_up()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def clean_up():
    for s in (*TIMELY, signal.SIGPIPE):
        signal.signal(s, signal.SIG_IGN)
    for fd in connections:
        disconnect(fd)
    # Clients before their servers.
    for pid in reversed(list(_children)):
        end(pid)
    for name in _files:
        # The plugin makes the image after its data file.
        made = _data_files.get(name) if has_one_name(name) else None
        unlink(name)
        if made:
            unlink(made)
    for directory in _directories:
        try:
            for name in os.listdir(directory):
                os.unlink(os.path.join(directory, name))
            os.rmdir(directory)
        except FileNotFoundError:
            pass                # a signal came before it was made


def disconnect(fd):
    """A server ends when it has no clients.  (Not through libnbd, one of whose callbacks
    may be running.)"""
    try:
        s = socket.socket(fileno=os.dup(fd))
        try:
            s.shutdown(socket.SHUT_RDWR)
        finally:
            s.close()
    except OSError:
        pass                    # it has been closed


def unlink(name):
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass


def has_one_name(name):
    try:
        return os.stat(name).st_nlink == 1
    except FileNotFoundError:
        return False


def remove_at_end(name, given, data_file=None):
    """And if it exists, the data file that was made with it."""
    _files[name] = given
    if data_file is not None:
        _data_files[name] = data_file


def keep(name):
    del _files[name]


def hide(uri, shown):
    """Messages, also those of other programs, show the second one instead."""
    _uris[uri] = shown


def with_given_names(text):
    for name, given in [*_files.items(), *_uris.items()]:
        text = text.replace(name, given)
    return text


def directory(longest=None):
    """A directory for files that the end of this process removes.  Nobody else can use
    it.  Its name has at most LONGEST bytes."""
    for name in _directories:
        if longest is None or len(os.fsencode(name)) <= longest:
            return name
    name = os.path.join(os.environ.get("TMPDIR") or "/tmp",
                        "nbdkit-qcow2-img." + os.urandom(6).hex())
    if longest is not None and len(os.fsencode(name)) > longest:
        name = os.path.join("/tmp", os.path.basename(name))
    _directories.append(name)
    os.mkdir(name, 0o700)
    return name


# --- Processes.

def spawn(args, stdin=None, stdout=None, stderr=None, fds=(), prepare=None):
    """Starts a program, without stdin unless it is given.  It inherits the descriptors
    FDS.  PREPARE is called in the new process."""
    sys.stdout.flush()
    standard = stdin, stdout, stderr
    # No signal between the start and the note of it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, TIMELY)
    pid = None if prepare else begin(args, standard, fds, mask)
    if pid is None:
        pid = os.fork()
        if pid == 0:
            become(args, standard, fds, prepare, mask)
    _children.append(pid)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def begin(args, standard, fds, mask):
    """Without a copy of this process, of whose memory both would then have to copy each
    page that they touch.  None: it does not work, and a copy will say why."""
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)] \
        if standard[0] is None else []
    actions += [(os.POSIX_SPAWN_DUP2, source, number)
                for number, source in enumerate(standard) if source is not None]
    # This is how they are inherited.
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in fds]
    environment = dict(os.environ, PATH=search_path())
    try:
        return os.posix_spawn(find(args[0]), args, environment, file_actions=actions,
                              setsigmask=mask, setsigdef=(*TIMELY, signal.SIGPIPE))
    except OSError:
        return None


def search_path():
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def find(program):
    """As execvp does."""
    if "/" in program:
        return program
    for directory in search_path().split(":"):
        name = os.path.join(directory, program)
        if os.access(name, os.X_OK) and os.path.isfile(name):
            return name
    raise FileNotFoundError


def become(args, standard, fds, prepare, mask):
    """In the new process."""
    try:
        for s in (*TIMELY, signal.SIGPIPE):
            signal.signal(s, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, source in enumerate(standard):
            if source is not None or number == 0:
                os.dup2(nothing if source is None else source, number)
        for fd in fds:
            os.set_inheritable(fd, True)
        if prepare:
            prepare()
        os.environ["PATH"] = search_path()
        os.execvp(args[0], args)
    except OSError as e:
        os.write(2, ("%s: %s\n" % (args[0], e.strerror)).encode())
    finally:
        os._exit(127)


def wait(pid):
    """The exit status, as a shell gives it."""
    status = os.waitpid(pid, 0)[1]
    _children.remove(pid)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def end(pid):
    """SIGTERM, and SIGKILL for a program that does not obey."""
    import time
    try:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if os.waitpid(pid, os.WNOHANG)[0]:
                break
            time.sleep(0.002)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    _children.remove(pid)


def text_file():
    """A file in memory, for what a program writes."""
    return os.memfd_create("nbdkit-qcow2-img")


def text_of(fd):
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode("utf-8", "surrogateescape")


# --- What nbdkit says.

BOTH = "%s: the file would be read and written at the same time"


def reason(said, program="nbdkit", which=-1):
    """One line that says why: the last error (or another one), without nbdkit's
    prefixes."""
    lines = [line.strip() for line in said.split("\n") if line.strip()]
    errors = [line for line in lines if "error: " in line] or lines
    if not errors:
        return "%s failed, and did not say why" % program
    line = errors[which]
    line = line.split("error: ", 1)[1] if "error: " in line else line
    name, is_lock, _ = line.partition(": cannot get the ")
    # The file that is in the way is locked by this process (locks.py).
    if is_lock and "(held by PID %d," % os.getpid() in line:
        return BOTH % name
    return in_options(line)


# Parameters of the plugin that options become, and values of such parameters.
OPTIONS = {
    "allow-uri": "--allow-uri", "backing-file": "-b", "backing-format": "-F",
    "bitmap-add": "bitmap", "bitmap-from": "-b", "bitmap-granularity": "-g",
    "bitmap-into": "bitmap", "bitmap-merge": "--merge", "commit=keep": "-d",
    "commit=on": "commit", "compress=all": "-c", "compress=on": "-c", "create": "size",
    "encrypt": "encrypt.format=", "flatten=true": "convert",
    "iter-time": "encrypt.iter-time=", "key-add": "encrypt.new-secret=",
    "key-add-slot": "encrypt.keyslot=", "key-erase": "encrypt.old-secret=",
    "key-erase-slot": "encrypt.keyslot=", "key-force=true": "--force", "map": "map",
    "passphrase": "--object", "preallocation": "preallocation=", "raw-copy": "TARGET",
    "rebase": "-b", "rebase-unsafe=true": "-u", "resize": "size",
    "shrink=true": "--shrink", "snapshot": "-l", "snapshot-apply": "-a",
    "snapshot-create": "-c", "snapshot-delete": "-d",
    **{name: name.replace("-", "_") + "=" for name in (
        "cluster-size", "compat", "compression-type", "data-file", "data-file-raw",
        "extended-l2", "lazy-refcounts", "refcount-bits")}}


def in_options(text):
    """What the plugin says of its parameters is said of the options: a word KEY=VALUE at
    the beginning, and those that stand there with it."""
    if text.partition("=")[0] not in {known.partition("=")[0] for known in OPTIONS}:
        return text
    import re

    def option(found):
        key, value = found.groups()
        name = OPTIONS.get(key + "=" + value) or OPTIONS.get(key)
        if name is None or key + "=" + value in OPTIONS:
            return name or found[0]
        return name + ("" if name.endswith("=") or not value else " ") + value

    return re.sub(r"(?<![^ ])([a-z][a-z0-9-]*)=([^ :,]*)", option, text)


# How the plugin says what state a long change left, after the cause.
CUT_SHORT = " failed after "


def cause_and_state(said):
    """The last reason; and if it says how far a change came, the first one before it."""
    state, cause = reason(said), reason(said, which=0)
    if CUT_SHORT not in state or state == cause:
        return state
    return "%s: %s" % (cause, state)


def notes(said):
    """The other lines."""
    return [line for line in said.split("\n") if line.strip() and "error: " not in line]


def run(args, **options):
    """Runs a program to its end: its Result."""
    log = text_file()
    result = Result(wait(spawn(args, stderr=log, **options)), text_of(log))
    os.close(log)
    check_installed(result, args[0])
    return result


class Result:
    def __init__(self, status, said):
        self.status = status
        self.said = said


def check_installed(result, program):
    if result.status == 127 and result.said.startswith(program + ": "):
        raise Failure("%s: is it installed?" % result.said.strip())


def prepare(parameters, fds=(), readonly=False, progress=None):
    """Has the plugin do what happens before serving, and nothing else, and show PROGRESS."""
    # (Of -U -, nbdkit leaves a directory in /tmp if it fails.)
    socket = os.path.join(directory(SOCKET_NAME), "prepare.sock")
    unlink(socket)
    args = [nbdkit, "-U", socket, *(["-r"] if readonly else []), plugin, *parameters,
            "--run", ":"]
    if progress is None or not progress.wanted:
        return run(args, fds=fds)
    read, write = os.pipe()
    os.environ[PROGRESS] = str(write)
    try:
        return run_and_follow(args, progress, (0, 1), read, write, fds=fds)
    finally:
        del os.environ[PROGRESS]


def run_and_follow(args, progress, share, read, write, fds=(), **options):
    """As run, of a program that tells its progress in the pipe."""
    log = text_file()
    pid = spawn(args, stderr=log, fds=[*fds, write], **options)
    os.close(write)
    progress.follow(read, *share)
    result = Result(wait(pid), text_of(log))
    os.close(log)
    check_installed(result, args[0])
    return result


def draw(text):
    """The line on the terminal that the next one replaces."""
    global _drawn
    if text or _drawn:
        sys.stderr.write(text + "\033[K\r")
        sys.stderr.flush()
    _drawn = bool(text)


def escaped(text):
    """As a part of a URI.  (Loading Python's module takes as long as starting nbdkit.)"""
    return "".join(chr(b) if b < 128 and chr(b).isalnum() or b in b"-._~" else
                   "%%%02X" % b for b in os.fsencode(text))


class Server:
    """nbdkit, for one image.  It listens when this returns: on a socket that this process
    has made.  If it does not start, the first client finds that out: see explain."""

    count = 0

    def __init__(self, arguments, fds=(), readonly=False):
        Server.count += 1
        self.socket = os.path.join(directory(SOCKET_NAME), "%d.sock" % Server.count)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with About(self.socket):
            listening.bind(self.socket)
        listening.listen(64)
        self.log = text_file()

        def activate():
            # As systemd does: the socket is descriptor 3 (FDS have higher numbers).
            os.dup2(listening.fileno(), 3)
            os.set_inheritable(3, True)
            os.environ["LISTEN_PID"] = str(os.getpid())
            os.environ["LISTEN_FDS"] = "1"

        self.pid = spawn([nbdkit, "-f", "--exit-with-parent",
                          *(["-r"] if readonly else []), *arguments],
                         stdout=self.log, stderr=self.log, fds=fds, prepare=activate)
        listening.close()

    def uri(self, export=""):
        return "nbd+unix:///%s?socket=%s" % (escaped(export), escaped(self.socket))

    def stop(self):
        """It has to end in order: then everything is in the file."""
        os.kill(self.pid, signal.SIGTERM)
        status = wait(self.pid)
        if status != 0:
            raise Failure(reason(text_of(self.log)))

    def explain(self, why):
        """The server's first reason if it has one, else WHY.  That a client went is
        none."""
        said = "\n".join(line for line in text_of(self.log).split("\n")
                         if "error: " in line and ": NBD_CMD_" not in line and
                         "error: read request: " not in line)
        return reason(said, which=0) if said else why
