"""A translator says that it does not survive a fork."""

import json
import subprocess
import sys

# A process of its own, for a fork of this one would have its threads missing.
FORKED = """
import json, os, sys
import tf_transformer as tt

path, text = sys.argv[1:]
translate = tt.Translator.load(path)
expected = translate(text)
errors = []
for attempt in (lambda: translate(text), lambda: tt.Translator.load(path)):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            said = attempt()
        except RuntimeError as error:
            said = error
        os.write(write, str(said).encode())
        os._exit(0)
    os.wait()
    errors.append(os.read(read, 10_000).decode())
print(json.dumps({"errors": errors, "alive": translate(text) == expected}))
"""


def test_a_forked_process_is_told_at_once(exported_version, sentences):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(exported_version), sentences[0]],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["alive"]
    for error in found["errors"]:
        assert "does not work after a fork" in error and "spawn" in error
