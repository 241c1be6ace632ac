"""Runs test suites that Python brings along, and writes what becomes of each test.

    suites.py RESULTS SECONDS PAIRS SUITE...

SUITE is a module, or a class or a test in one; with `-` before it, what begins with that name is left
out of the others. PAIRS is `unix`, or `tcp` for a socketpair() of two
TCP sockets: suites take its sockets for any. RESULTS gets a line `begin TEST` when a test begins,
and `ok TEST`, `failed TEST` or `skipped TEST` when it is over; RESULTS.errors has the reasons. A
test that takes longer than SECONDS ends the process. Tests that RESULTS has are not run again, so
that the next call goes on behind it.
"""

import faulthandler
import socket
import sys
import traceback
import unittest

from test import support

results, seconds, pairs, suites = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]
# Tests look at the arguments of their own.
del sys.argv[1:]

# Tests that need minutes or gigabytes are left out. Those that need a network have one, though it
# may lead nowhere.
support.use_resources = ["cpu", "network", "subprocess"]


def tcp_pair(*_):
    """Two ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        return one, listener.accept()[0]


if pairs == "tcp":
    socket.socketpair = tcp_pair

known = set()
with open(results, "a+", encoding="utf-8") as lines:
    lines.seek(0)
    known.update(line.rstrip("\n").split(" ", 1)[1] for line in lines)

out = open(results, "a", buffering=1, encoding="utf-8")
errors = open(results + ".errors", "a", buffering=1, encoding="utf-8")


class Result(unittest.TestResult):
    """Writes a line for what it hears."""

    def startTest(self, test):
        super().startTest(test)
        self.outcome = "ok"
        out.write(f"begin {test.id()}\n")
        faulthandler.dump_traceback_later(seconds, exit=True, file=errors)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        out.write(f"{self.outcome} {test.id()}\n")
        super().stopTest(test)

    def note(self, test, outcome, reason):
        self.outcome = outcome
        errors.write(f"{outcome} {test.id()}\n{reason}\n")
        if not isinstance(test, unittest.TestCase):
            # What a class or a module does before its tests.
            out.write(f"{outcome} {test.id()}\n")

    def addError(self, test, err):
        self.note(test, "failed", "".join(traceback.format_exception(*err)))

    def addFailure(self, test, err):
        self.addError(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note(test, "failed", "".join(traceback.format_exception(*err)))

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addUnexpectedSuccess(self, test):
        self.note(test, "failed", "it was expected to fail")


without = tuple(suite[1:] for suite in suites if suite.startswith("-"))
suites = [suite for suite in suites if not suite.startswith("-")]


def left(suite):
    """What of a suite is still to be run."""
    if isinstance(suite, unittest.TestCase):
        return None if suite.id() in known or suite.id().startswith(without) else suite
    rest = [test for test in map(left, suite) if test is not None]
    return unittest.TestSuite(rest) if rest else None


suite = left(unittest.defaultTestLoader.loadTestsFromNames(suites))
if suite is not None:
    suite.run(Result())
out.write("end .\n")
