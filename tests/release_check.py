"""Check a release before it is published: `python -m tests.release_check`, or `make release-check`.

Checks that the papers' figures were measured by the code that stands here; builds the wheel and the source archive
twice, from two copies of the last commit, and compares them byte for byte; installs the wheel's core, and then each
extra alone that is asked for, into empty environments; and measures there.
Needs an index to install from.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path
from statistics import median

from benchmarks.ledger import staleness

ROOT = Path(__file__).parents[1]
LARGEST_MB, SLOWEST_S = 350, 0.5
"""What the core may take on disk (NumPy and SciPy alone take 216 MB), and what `import securefed` may take."""
WORKS = """
import numpy as np
from securefed import secure_mean
from securefed.defenses import secure_aggregation
from securefed.parties import SumClient, SumServer, SumTerms

updates = [{"w": np.arange(3.0) + client} for client in range(3)]
assert np.allclose(secure_mean(updates, defense=secure_aggregation())["w"], [1, 2, 3])
terms = SumTerms.like(updates[0], clients=3, defense=secure_aggregation(), base=False)
server, clients = SumServer(terms), [SumClient(terms, number) for number in range(3)]
server.open()
while server.result is None:
    server.receive({i: clients[i].receive(request, updates[i]) for i, request in server.outgoing.items()})
assert np.allclose(server.result.mean["w"], [1, 2, 3])
"""
FROM_CORE_ONLY = """
from securefed.errors import MissingExtraError
try:
    from securefed.attacks import invert
except MissingExtraError as error:
    assert "securefed[torch]" in str(error), error
else:
    raise SystemExit("torch is installed with the core")
"""
AUDITS = """
import json, subprocess, sys
from pathlib import Path

command = [Path(sys.executable).with_name("securefed"), "audit", "--algorithms", "ssi", "--rounds", "2", "--seeds", "1"]
done = subprocess.run([*command, "--clients", "4"], check=True, capture_output=True, text=True)
assert "install securefed[paillier]" in done.stdout, done.stdout
report = json.loads(Path("audit-report/audit.json").read_text())
assert {cell["defense"] for cell in report["cells"]} == {"plain", "secure_aggregation", "ddp"}
assert report["environment"]["torch"] == "not installed"
"""
OF_EXTRA = {
    "audit": "import securefed.datasets as d; assert d.load('digits').data.rows == 1797" + AUDITS,
    "paillier": "from securefed import secure_mean; from securefed.defenses import paillier; import numpy as np\n"
    "assert np.allclose(secure_mean([{'w': np.ones(2)}] * 3, defense=paillier())['w'], 1)",
    "torch": "import securefed.torch; securefed.torch.masked_allreduce",
    "flower": "import securefed.flower",
    "lattice": "from securefed.defenses import ckks; ckks()",
    "records": "from securefed.algorithms import PrivateFedAvg",
}
"""By extra, what works where it is installed alone."""


def main() -> None:
    """Run all checks; the first that fails ends the process with its reason."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="comma-separated extras that are installed alone and tried")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the built files are kept")
    options = parser.parse_args()
    if words := staleness.sentence(staleness.owed()):
        sys.exit(words)
    with tempfile.TemporaryDirectory() as folder:
        commit = git("rev-parse", "HEAD").decode().strip()  # of both builds, even if a commit is made meanwhile
        built = [build(Path(folder) / name, commit) for name in ("first", "second")]
        for first, second in zip(*built, strict=True):
            same = digest(first) == digest(second)
            print(f"{first.name}: {digest(first)[:16]}, {'the same twice' if same else 'DIFFERS between builds'}")
            if not same:
                sys.exit(f"{first.name} is not reproducible")
        options.out.mkdir(exist_ok=True)
        for file in built[0]:
            (options.out / file.name).write_bytes(file.read_bytes())
        wheel = next(file for file in built[0] if file.suffix == ".whl")
        core(Path(folder) / "core", wheel)
        for extra in filter(None, options.extras.split(",")):
            python = environment(Path(folder) / extra, f"{wheel}[{extra}]")
            run(python, OF_EXTRA[extra])
            print(f"extra {extra}: {megabytes(Path(folder) / extra):.0f} MB, works alone")


def git(*arguments: str) -> bytes:
    """Return what a command of git prints in the clone."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def build(folder: Path, commit: str) -> list[Path]:
    """Build wheel and source archive of a commit in a folder; return their paths, sorted."""
    source = folder / "source"
    source.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as tar:
        tar.extractall(source, filter="data")
    epoch = git("log", "-1", "--format=%ct", commit).decode().strip()
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"SOURCE_DATE_EPOCH": epoch})
    files = sorted((folder / "dist").iterdir())
    for file in files:
        if file.name.endswith(".tar.gz"):
            normalise(file, int(epoch))
    return files


def normalise(archive: Path, epoch: int) -> None:
    """Write a source archive anew: entries by name, owned by root, dated by the commit."""
    with tarfile.open(archive) as tar:
        entries = [(info, tar.extractfile(info)) for info in sorted(tar.getmembers(), key=lambda one: one.name)]
        contents = [(info, file.read() if file else None) for info, file in entries]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in contents:
            info.mtime, info.uid, info.gid, info.uname, info.gname = epoch, 0, 0, "", ""
            info.pax_headers = {}
            tar.addfile(info, io.BytesIO(data) if data is not None else None)
    with archive.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as zipped:
        zipped.write(packed.getvalue())


def core(folder: Path, wheel: Path) -> None:
    """Install the core alone, and check its size, its import and its work."""
    python = environment(folder, str(wheel))
    size = megabytes(folder)
    if size > LARGEST_MB:
        sys.exit(f"the core takes {size:.0f} MB; at most {LARGEST_MB} are allowed")
    seconds = import_seconds(python)
    if seconds >= SLOWEST_S:
        sys.exit(f"import securefed takes {seconds:.2f} s of processor time; less than {SLOWEST_S} is allowed")
    for code in (WORKS, FROM_CORE_ONLY):
        run(python, code)
    run(python, "import sys; sys.argv[1:] = ['doctor']; from securefed.__main__ import app; app()")
    print(f"core: {size:.0f} MB, import {seconds:.2f} s, secure_mean and SumClient work, doctor is content")


def environment(folder: Path, requirement: str) -> Path:
    """Make an empty environment, install a requirement into it, and return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    limits = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "-q", *limits, requirement], check=True)
    return python


def import_seconds(python: Path) -> float:
    """Return the median processor time of five imports of the installed package, the interpreter's start left out."""
    code = "import time; t = time.process_time(); import securefed; print(time.process_time() - t)"
    return median(float(run(python, code)) for _ in range(5))


def megabytes(folder: Path) -> float:
    """Return the size of what an environment holds beside pip and its kin."""
    packages = next((folder / "lib").glob("python*/site-packages"))
    left_out = ("pip", "setuptools", "_distutils_hack")
    files = (file for file in packages.rglob("*") if file.is_file())
    counted = (file for file in files if not file.relative_to(packages).parts[0].startswith(left_out))
    return sum(file.stat().st_size for file in counted) / 1e6


def run(python: Path, code: str) -> str:
    """Run code in an environment, away from the clone; an error ends this process with the code's own words."""
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run([python, "-c", code], cwd=empty, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{code}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
