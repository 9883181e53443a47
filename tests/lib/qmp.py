# SPDX-License-Identifier: BSD-3-Clause
#
# A client of QMP, for ours and for qemu-storage-daemon's, and clients of NBD beside it.
#
#   c = Client(PATH)                negotiates
#   c.ask("query-jobs", key=value)  the whole answer; _ stands for - in keys
#   c.get(...)                      its "return"; anything else fails
#   c.refuses(TEXT, ...)            fails unless the error's desc has this text
#   c.events                        that came before an answer
#   h = connect(PATH, EXPORT)       libnbd's handle, with base:allocation

import json
import socket

import nbd


def connect(path, export=""):
    h = nbd.NBD()
    h.add_meta_context("base:allocation")
    h.set_export_name(export)
    h.connect_unix(path)
    return h


class Client:
    def __init__(self, path, negotiate=True):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")
        self.events = []
        self.greeting = self.hear()
        if negotiate:
            self.get("qmp_capabilities")

    def close(self):
        self.lines.close()
        self.socket.close()

    def say(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else data.encode())

    def hear(self):
        """The next message; None at the end."""
        line = self.lines.readline()
        assert line == b"" or line.endswith(b"\r\n"), line
        return json.loads(line) if line else None

    def answer(self):
        while True:
            message = self.hear()
            if message is None or "event" not in message:
                return message
            self.events.append(message)

    def until(self, found):
        """All events up to the first that FOUND accepts.  Later ones stay."""
        n = 0
        while True:
            if n == len(self.events):
                event = self.hear()
                assert event and "event" in event, event
                self.events.append(event)
            n += 1
            if found(self.events[n - 1]):
                seen, self.events = self.events[:n], self.events[n:]
                return seen

    def until_status(self, *states):
        """The same: up to one of these states of a job."""
        return self.until(lambda e: e["event"] == "JOB_STATUS_CHANGE" and
                          e["data"]["status"] in states)

    def ask(self, command, **arguments):
        message = {"execute": command}
        if arguments:
            message["arguments"] = {key.replace("_", "-"): value
                                    for key, value in arguments.items()}
        self.say(json.dumps(message))
        return self.answer()

    def get(self, command, **arguments):
        answer = self.ask(command, **arguments)
        assert "return" in answer, (command, arguments, answer)
        return answer["return"]

    def refuses(self, text, command, **arguments):
        answer = self.ask(command, **arguments)
        assert "error" in answer and text in answer["error"]["desc"], \
            (command, arguments, answer)

    def node(self):
        """What query-named-block-nodes says about the image."""
        return self.get("query-named-block-nodes")[0]

    def bitmap(self, name):
        found = [b for b in self.node().get("dirty-bitmaps", []) if b["name"] == name]
        return found[0] if found else None
