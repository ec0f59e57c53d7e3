"""What goes wrong in real environments, done to a small one: each must be seen, and said with its code."""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from bitgate.tools.config.model import ExpectConfig
from bitgate.tools.provenance.check import Check, Declared, RankFacts
from bitgate.tools.provenance.files import source_files
from bitgate.tools.provenance.observed import Observation, SeenCache, SeenChild, SeenDevice, SeenDistribution
from bitgate.tools.provenance.ranks import between_ranks
from bitgate.tools.provenance.record import SideProvenance, by_group, differences, fingerprint
from bitgate.tools.reasons import REASONS

Environment = Any
SEVERAL = "import engine_pkg, ctypes, shutil, os\n"


def test_an_untouched_environment_without_torch_passes(environment: Environment, clean: Observation) -> None:
    assert environment.codes(clean) == {}
    facts = environment.facts(clean)
    assert facts.files.of(str(environment.site / "engine_pkg/kernels.py")).as_recorded is True


def test_an_edited_file_in_site_packages_is_seen(environment: Environment) -> None:
    path = environment.site / "engine_pkg/kernels.py"
    path.write_text(path.read_text(encoding="utf-8").replace("x * 2", "x * 3"), encoding="utf-8")
    assert environment.codes(environment.observe()) == {"file_edited": str(path)}


def test_a_file_that_was_put_into_a_package_is_seen(environment: Environment) -> None:
    (environment.site / "engine_pkg/extra.py").write_text("x = 1\n", encoding="utf-8")
    found = environment.codes(environment.observe("import engine_pkg.extra"))
    assert found == {"file_added": str(environment.site / "engine_pkg/extra.py")}


def test_a_folder_in_the_working_directory_that_shadows_a_package_is_seen(
    environment: Environment, tmp_path: Path
) -> None:
    shadow = tmp_path / "work"
    shutil.copytree(environment.site / "engine_pkg", shadow / "engine_pkg")
    environment.path = [shadow]
    expect = ExpectConfig(modules={"engine_pkg": str(environment.site)})
    found = environment.codes(environment.observe(), Declared(expect=expect))
    assert set(found) == {"two_copies", "expectation_unmet"}
    assert str(shadow / "engine_pkg/__init__.py") in found["two_copies"]


PATCHES = {
    "a function": "import engine_pkg.kernels\ndef faster(x):\n    return x * 2.0001\nengine_pkg.kernels.gemm = faster",
    "a method": "import engine_pkg.kernels\nengine_pkg.kernels.Layer.forward = lambda self, x: x",
    "code under the file's own name": "import engine_pkg.kernels as k\n"
    "exec(compile('def gemm(x):\\n    return x', k.__file__, 'exec'), vars(k))",
    "code swapped inside a function": "import engine_pkg.kernels as k\nk.gemm.__code__ = (lambda x: x).__code__",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_a_replaced_function_is_seen_with_who_replaced_it(environment: Environment, patch: str) -> None:
    found = environment.codes(environment.observe(patch))
    assert set(found) == {"code_replaced"}
    assert "replaced by " in found["code_replaced"] and ".py:" in found["code_replaced"]


def test_a_patch_by_an_installed_wheel_is_recorded_and_no_failure(environment: Environment, clean: Observation) -> None:
    wheel = next(m.path for m in clean.modules or () if m.name == "engine_pkg.kernels")
    patch = {"function": "torch.mm", "by": wheel, "line": 1, "module": "engine_pkg.kernels", "genuine": True}
    seen = Observation.model_validate({**clean.model_dump(), "replaced": [patch]})
    assert environment.codes(seen) == {}
    edited = Observation.model_validate({**clean.model_dump(), "replaced": [{**patch, "genuine": False}]})
    assert set(environment.codes(edited)) == {"code_replaced"}


def test_a_wrapper_that_the_file_itself_applies_is_no_patch(environment: Environment) -> None:
    cached = "import functools\n\n\n@functools.cache\ndef cached(x):\n    return x\n\n\n"
    text = cached + "def plain(x):\n    return x\n\n\n"
    (environment.site / "wrapped.py").write_text(
        text + "plain = functools.wraps(plain)(lambda x: x)\n", encoding="utf-8"
    )
    assert environment.codes(environment.observe("import engine_pkg, wrapped", watched=("wrapped",))) == {}


def test_stale_bytecode_that_python_does_not_check_is_seen(environment: Environment) -> None:
    path = environment.site / "engine_pkg/kernels.py"
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace("x * 2", "x * 5"), encoding="utf-8")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH, doraise=True)
    path.write_text(original, encoding="utf-8")
    assert set(environment.codes(environment.observe())) == {"bytecode_stale"}


def test_a_module_without_a_source_is_seen(environment: Environment) -> None:
    path = environment.site / "engine_pkg/kernels.py"
    py_compile.compile(str(path), cfile=str(path.with_suffix(".pyc")), doraise=True)
    path.unlink()
    assert "bytecode_stale" in environment.codes(environment.observe())


def test_an_env_that_is_only_in_the_launcher_fails(environment: Environment, clean: Observation) -> None:
    """vllm#14099: the driver had the variable, its workers did not."""
    declared = Declared(env={"VLLM_USE_KERNEL": "1"})
    assert environment.codes(clean, declared) == {"env_not_as_declared": "(unset)"}
    shell = Declared(inherited={"VLLM_USE_KERNEL": "1", "HOME": "/root"})
    assert environment.codes(clean, shell) == {"env_not_delivered": "(unset)"}


def test_a_variable_that_nobody_declared_fails_and_places_and_logs_do_not_matter(environment: Environment) -> None:
    environment.env = {"VLLM_FAST_PATH": "1", "NCCL_DEBUG": "INFO", "VLLM_CACHE_ROOT": "/x", "EDITOR": "vi"}
    seen = environment.observe()
    assert environment.codes(seen) == {"env_undeclared": "1"}
    assert environment.codes(seen, Declared(env={"VLLM_FAST_PATH": "1"})) == {}
    assert environment.codes(seen, Declared(env={"VLLM_FAST_PATH": "2"})) == {"env_not_as_declared": "1"}


def test_a_variable_that_the_process_itself_sets_meets_an_expectation_but_no_declaration(
    environment: Environment,
) -> None:
    seen = environment.observe("import os\nos.environ['VLLM_X'] = '1'\nimport engine_pkg")
    assert environment.codes(seen, Declared(expect=ExpectConfig(env={"VLLM_X": "1"}))) == {}
    assert set(environment.codes(seen, Declared(env={"VLLM_X": "1"}))) == {"env_not_as_declared"}


def test_secrets_are_never_written_down(environment: Environment) -> None:
    environment.env = {"VLLM_API_KEY": "sk-verysecretvalue", "HF_TOKEN": "hf_abcdefghijklmnopqrst"}
    text = environment.raw("import engine_pkg", env_names=["HF_TOKEN", "VLLM_API_KEY"])
    assert "verysecret" not in text and "hf_abc" not in text
    assert "[redacted]" in text


def test_a_preloaded_library_is_seen_twice(environment: Environment, tmp_path: Path) -> None:
    library = tmp_path / "libfast.so"
    shutil.copy(_some_library(), library)
    environment.env = {"LD_PRELOAD": str(library)}
    seen = environment.observe()
    assert environment.codes(seen) == {"env_undeclared": str(library), "library_unowned": str(library)}
    declared = Declared(env={"LD_PRELOAD": str(library)}, expect=ExpectConfig(loaded=("libfast.so",)))
    assert environment.codes(seen, declared) == {}


def test_a_library_that_was_deleted_after_loading_is_seen(environment: Environment, tmp_path: Path) -> None:
    library = tmp_path / "libgone.so"
    shutil.copy(_some_library(), library)
    body = f"{SEVERAL}ctypes.CDLL({str(library)!r})\nos.unlink({str(library)!r})"
    assert "(deleted)" in environment.codes(environment.observe(body))["library_deleted"]


def _some_library() -> str:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return next(line.split()[-1] for line in maps if "libm.so" in line or "libm-" in line)


def test_build_ids_of_libraries_are_recorded(environment: Environment, clean: Observation) -> None:
    facts = environment.facts(clean)
    libc = next(lib.path for lib in clean.mapped or () if "libc.so" in lib.path or "libc-" in lib.path)
    assert len(facts.files.of(libc).build_id or "") == 40


def test_a_tree_that_moved_on_after_the_start_is_seen(environment: Environment, clean: Observation) -> None:
    assert clean.place is not None
    earlier = clean.place.model_copy(update={"started_at": clean.place.observed_at - 3600})
    assert set(environment.codes(clean.model_copy(update={"place": earlier}))) == {"code_moved_on"}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_and_dirty_tree_of_an_editable_package(environment: Environment, tmp_path: Path) -> None:
    tree = tmp_path / "checkout"
    (tree / "edited").mkdir(parents=True)
    (tree / "edited/__init__.py").write_text("x = 1\n", encoding="utf-8")
    git(tree, "init", "-q")
    git(tree, "add", ".")
    git(tree, "commit", "-q", "-m", "first")
    commit = git(tree, "rev-parse", "HEAD")
    environment.path = [tree]
    declared = Declared(expect=ExpectConfig(commits={"edited": commit[:12]}))
    assert environment.codes(environment.observe("import edited"), declared) == {}
    assert "expectation_unmet" in environment.codes(
        environment.observe("import edited"), Declared(expect=ExpectConfig(commits={"edited": "f" * 12}))
    )
    (tree / "edited/__init__.py").write_text("x = 2\n", encoding="utf-8")
    assert set(environment.codes(environment.observe("import edited"), declared)) == {"tree_dirty"}


def test_source_that_was_read_against_code_that_runs(
    environment: Environment, clean: Observation, tmp_path: Path
) -> None:
    """Megatron-LM tools/bisect.md: the image's own copy ran, whatever was checked out."""
    source = tmp_path / "src-tree"
    shutil.copytree(
        environment.site / "engine_pkg", source / "engine_pkg", ignore=shutil.ignore_patterns("__pycache__")
    )
    assert _against(environment, clean, source) == {}
    (source / "engine_pkg/kernels.py").write_text("def gemm(x):\n    return x * 2  # read\n", encoding="utf-8")
    assert _against(environment, clean, source) == {"source_differs": "other bytes in engine_pkg.kernels"}
    shutil.rmtree(source / "engine_pkg")
    assert set(_against(environment, clean, source)) == {"not_observed"}


def _against(environment: Environment, seen: Observation, source: Path) -> dict[str, str]:
    from bitgate.tools.provenance.hashing import HashCache

    files = source_files(source, [m.name for m in seen.modules or ()])
    digests = HashCache(environment.root / "s.db").blake3(str(path) for path in files.values()).digests
    known = {name: digests[str(path)] for name, path in files.items()}
    found: dict[str, str] = environment.codes(seen, Declared(source=known, source_tree=str(source)))
    return found


def test_one_of_two_ranks_with_another_file_is_seen(environment: Environment, clean: Observation) -> None:
    first = environment.facts(clean)
    path = environment.site / "engine_pkg/kernels.py"
    path.write_text("def gemm(x):\n    return x + x\n", encoding="utf-8")
    second = environment.facts(environment.observe(), rank=1)
    [check] = between_ranks([first, second])
    assert (check.code, check.rank, check.observed) == ("ranks_differ", 1, "other bytes in engine_pkg.kernels")


def test_one_of_two_ranks_with_another_variable_is_seen(environment: Environment, clean: Observation) -> None:
    environment.env = {"OMP_NUM_THREADS": "3"}
    [check] = between_ranks([environment.facts(clean), environment.facts(environment.observe(), rank=1)])
    assert (check.code, check.observed) == ("ranks_differ", "OMP_NUM_THREADS")


def test_one_of_two_ranks_with_another_version_or_gpu_is_seen(environment: Environment, clean: Observation) -> None:
    def rank(number: int, version: str, gpus: list[str]) -> RankFacts:
        torch = SeenDistribution(version=version, folder="/x")
        device = SeenDevice(stable={"gpus": list[JsonValue](gpus), "cpu_governor": f"g{number}"})
        seen = clean.model_copy(update={"distributions": {"torch": torch}, "device": device})
        return environment.facts(seen, rank=number)  # type: ignore[no-any-return]

    found = between_ranks([rank(0, "2.13.0", ["H200"] * 8), rank(1, "2.12.1", ["H100"]), rank(2, "2.13.0", ["H200"])])
    assert [(check.rank, check.expected, check.observed) for check in found] == [
        (1, "the versions of rank 0", "torch 2.12.1"),
        (1, "the machine of rank 0", "GPU H100"),
    ]


def test_one_of_two_ranks_with_a_library_of_another_folder_is_seen(environment: Environment, tmp_path: Path) -> None:
    """A second libnccl.so.2 wins by the order of a search path."""
    ranks = []
    for rank, tail in enumerate((b"", b"", b"\0")):
        environment.cwd = tmp_path / f"place{rank}"
        environment.cwd.mkdir()
        (environment.cwd / "libnccl.so.2").write_bytes(Path(_some_library()).read_bytes() + tail)
        seen = environment.observe("import ctypes\nctypes.CDLL('./libnccl.so.2')")
        ranks.append(environment.facts(seen, rank=rank))
    [check] = between_ranks(ranks)
    assert (check.rank, check.observed) == (2, "other bytes in libnccl.so.2")


def test_ranks_are_compared_by_a_hash_that_both_have(environment: Environment, clean: Observation) -> None:
    """Rank 1 is on another host, and hashed its files itself."""
    seen = environment.observe(hash_files=True)
    away = seen.model_copy(
        update={"modules": tuple(m.model_copy(update={"stat": (1,) * 5}) for m in seen.modules or ())}
    )
    first, second = environment.facts(seen), environment.facts(away, rank=1)
    assert second.files.of(str(environment.site / "engine_pkg/kernels.py")).blake3 is None
    assert between_ranks([first, second]) == []
    other = tuple(
        m.model_copy(update={"sha256": "0" * 64}) if m.name == "engine_pkg" else m for m in away.modules or ()
    )
    [check] = between_ranks([first, environment.facts(away.model_copy(update={"modules": other}), rank=1)])
    assert (check.rank, check.observed) == (1, "other bytes in engine_pkg")


@pytest.mark.parametrize("section", ["device", "modules", "mapped", "distributions", "environment_now"])
@pytest.mark.parametrize("blind", [0, 1])
def test_a_rank_that_tells_nothing_of_something_is_not_called_equal(
    environment: Environment, clean: Observation, section: str, blind: int
) -> None:
    less = clean.model_copy(update={section: None, "not_observed": {section: "PermissionError"}})
    ranks = [environment.facts(less if rank == blind else clean, rank=rank) for rank in range(2)]
    [check] = between_ranks(ranks)
    assert (check.code, check.rank) == ("not_observed", 1)
    assert check.observed == f"nothing from rank {blind}: PermissionError"


def test_what_one_rank_alone_tells_of_its_machine_is_not_called_equal(
    environment: Environment, clean: Observation
) -> None:
    told = clean.model_copy(update={"device": SeenDevice(stable={"gpus": ["H200"], "driver": "575"})})
    silent = clean.model_copy(update={"device": SeenDevice(stable={"driver": "575"})})
    [check] = between_ranks([environment.facts(told), environment.facts(silent, rank=1)])
    assert (check.code, check.observed) == ("not_observed", "GPU, which rank 0 alone tells")


def test_files_without_a_hash_that_both_ranks_have_are_not_called_equal(
    environment: Environment, clean: Observation
) -> None:
    """Rank 1 could not read one of its files where rank 0 has it."""
    hidden = tuple(
        m.model_copy(update={"stat": (1,) * 5}) if m.name == "engine_pkg.kernels" else m for m in clean.modules or ()
    )
    away = clean.model_copy(update={"modules": hidden})
    [check] = between_ranks([environment.facts(clean), environment.facts(away, rank=1)])
    assert (check.code, check.observed) == ("not_observed", "no hash of engine_pkg.kernels that both have")


@pytest.mark.parametrize("section", ["children", "caches", "device", "distributions"])
def test_a_section_that_could_not_be_observed_is_inconclusive_with_its_reason(
    environment: Environment, clean: Observation, section: str
) -> None:
    less = clean.model_copy(update={section: None, "not_observed": {section: "PermissionError: no"}})
    assert environment.codes(less) == {"not_observed": "nothing: PermissionError: no"}


def test_what_cannot_be_observed_is_inconclusive_never_a_pass(environment: Environment, clean: Observation) -> None:
    """No /proc: neither the starting environment nor what is mapped can be read."""
    blind = clean.model_copy(
        update={
            "environment_at_start": None,
            "mapped": None,
            "not_observed": {"mapped": "FileNotFoundError", "environment_at_start": "FileNotFoundError"},
        }
    )
    failed = [check for check in environment.checks(blind) if check.code]
    assert {check.code for check in failed} == {"not_observed"}
    assert {REASONS[check.code].verdict for check in failed} == {"inconclusive"}
    assert all("FileNotFoundError" in check.observed for check in failed)


def test_files_that_cannot_be_read_are_inconclusive(environment: Environment, clean: Observation) -> None:
    (environment.site / "engine_pkg/kernels.py").unlink()
    assert set(environment.codes(clean)) == {"file_unreadable"}


def test_a_worker_elsewhere_hashes_its_files_itself(environment: Environment) -> None:
    seen = environment.observe(hash_files=True)
    path = str(environment.site / "engine_pkg/kernels.py")
    moved = [m.model_copy(update={"stat": (1, 2, 3, 4, 5)}) for m in seen.modules or ()]
    there = seen.model_copy(update={"modules": tuple(moved)})
    assert environment.facts(there).files.of(path).as_recorded is True
    assert "file_unreadable" not in environment.codes(there)


def test_a_process_that_computes_unobserved_is_inconclusive(environment: Environment, clean: Observation) -> None:
    child = SeenChild(pid=7, command="ray::Worker", computes=True)
    assert set(environment.codes(clean.model_copy(update={"children": (child,)}))) == {"worker_unobserved"}


def test_a_jit_cache_older_than_the_code_is_inconclusive(environment: Environment, clean: Observation) -> None:
    torch = [m.model_copy(update={"name": "torch"}) for m in (clean.modules or ())[:1]]
    old = SeenCache(cache="triton", file="/c/k.so", made_at=1.0, from_cache=True)
    seen = clean.model_copy(update={"caches": (old,), "modules": (*(clean.modules or ()), *torch)})
    assert environment.codes(seen)["jit_cache_older"].endswith("/c/k.so")
    fresh = old.model_copy(update={"from_cache": False})
    assert "jit_cache_older" not in environment.codes(seen.model_copy(update={"caches": (fresh,)}))


COMPILES = """
import ctypes, importlib.util, os, shutil, time
import engine_pkg
os.environ["TRITON_CACHE_DIR"] = "/elsewhere"
made = os.path.join(os.environ["HOME"], ".triton", "cache", "k")
os.makedirs(made)
shutil.copy({library!r}, os.path.join(made, "launcher.so"))
ctypes.CDLL(os.path.join(made, "launcher.so"))
with open(os.path.join(made, "kernel.py"), "w") as file:
    file.write("x = 1")
later = time.time() + 60
os.utime(file.name, (later, later))
spec = importlib.util.spec_from_file_location("kernel", file.name)
sys.modules["kernel"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def test_code_that_the_process_compiled_itself_is_neither_strange_nor_moved_on(environment: Environment) -> None:
    """Also when the engine names another cache after a library has chosen the first."""
    seen = environment.observe(COMPILES.format(library=str(_some_library())))
    assert {os.path.basename(cache.file) for cache in seen.caches or ()} == {"launcher.so", "kernel.py"}
    assert environment.codes(seen) == {}


CHOSEN = {"attention": {"backends": {"CPU_ATTN": 4}}, "batch_invariant": {"requested": True}, "operators": {}}


@pytest.mark.parametrize(
    ("expect", "code"),
    [
        ({"versions": {"engine-pkg": "1.2.0"}}, None),
        ({"versions": {"engine-pkg": "1.2.1"}}, "expectation_unmet"),
        ({"versions": {"absent": "1"}}, "expectation_unmet"),
        ({"modules": {"never_imported": "/x"}}, "not_observed"),
        ({"commits": {"engine_pkg": "0123456"}}, "not_observed"),
        ({"env": {"VLLM_Y": "1"}}, "expectation_unmet"),
        ({"backends": {"attention.backends": "CPU_ATTN"}}, None),
        ({"backends": {"attention.*": "FLASH*"}}, "expectation_unmet"),
        ({"backends": {"batch_invariant.requested": "true"}}, None),
        ({"backends": {"moe.backend": "triton"}}, "not_observed"),
        ({"transport": "MNNVL"}, "not_observed"),
        ({"loaded": ("engine_pkg.kernels",)}, None),
        ({"loaded": ("libnccl*",)}, "expectation_unmet"),
        ({"not_loaded": ("*batch_invariant*",)}, None),
        ({"not_loaded": ("engine_pkg*",)}, "expectation_unmet"),
    ],
)
def test_each_expectation_has_a_verdict(
    environment: Environment, clean: Observation, expect: dict[str, Any], code: str | None
) -> None:
    found = environment.codes(clean, Declared(expect=ExpectConfig(**expect)), chosen=CHOSEN)
    assert set(found) == ({code} if code else set())


def test_a_transport_that_variables_choose_is_checked(environment: Environment) -> None:
    environment.env = {"NCCL_NET": "IB"}
    seen, env = environment.observe(), {"NCCL_NET": "IB"}
    assert environment.codes(seen, Declared(env=env, expect=ExpectConfig(transport="IB"))) == {}
    wrong = environment.codes(seen, Declared(env=env, expect=ExpectConfig(transport="MNNVL")))
    assert wrong == {"expectation_unmet": "NCCL_NET=IB"}


def provenance(environment: Environment, name: str, seen: Observation) -> SideProvenance:
    return SideProvenance(name, (environment.facts(seen),), ())


def test_two_runs_of_one_side_differ_in_nothing_stable(environment: Environment, clean: Observation) -> None:
    one, two = provenance(environment, "a", clean), provenance(environment, "a", environment.observe())
    assert differences(one, two) == []
    assert one.digest == two.digest


def test_the_difference_of_two_sides_is_named_by_group(environment: Environment, clean: Observation) -> None:
    one = provenance(environment, "a", clean)
    environment.env = {"VLLM_FAST": "1"}
    (environment.site / "engine_pkg/kernels.py").write_text("def gemm(x):\n    return x\n", encoding="utf-8")
    two = provenance(environment, "b", environment.observe())
    found = by_group(differences(one, two))
    assert found["environment"] == {"VLLM_FAST": [None, "1"]}
    assert found["modules"] == {"other_bytes": ["engine_pkg.kernels"], "only_left": 0, "only_right": 0}
    assert one.digest != two.digest


def test_two_sides_are_compared_by_a_hash_that_both_have(environment: Environment) -> None:
    """Side b runs on another host, where its files were hashed with SHA-256 alone; one of them nobody could read."""
    seen = environment.observe(hash_files=True)
    far = [m.model_copy(update={"stat": (1,) * 5}) for m in seen.modules or ()]
    far = [m.model_copy(update={"sha256": None}) if m.name == "engine_pkg.kernels" else m for m in far]
    far = [m.model_copy(update={"sha256": "0" * 64}) if m.name == "engine_pkg" else m for m in far]
    here = provenance(environment, "a", seen)
    there = provenance(environment, "b", seen.model_copy(update={"modules": tuple(far)}))
    found = by_group(differences(here, there))
    assert found == {"modules": {"other_bytes": ["engine_pkg"], "only_left": 1, "only_right": 0}}
    unlike = [m.model_copy(update={"sha256": None}) if m.name == "json" else m for m in seen.modules or ()]
    alone = provenance(environment, "c", seen.model_copy(update={"modules": tuple(unlike)}))
    assert by_group(differences(alone, there))["modules"]["not_compared"] == 1  # type: ignore[index,call-overload]


def test_the_fingerprint_holds_files_with_size_and_time(environment: Environment, clean: Observation) -> None:
    body = fingerprint([provenance(environment, "a", clean)])
    path = environment.site / "engine_pkg/kernels.py"
    assert [str(path), path.stat().st_size, path.stat().st_mtime_ns] in body["files"]
    assert body["host"] == os.uname().nodename
    assert not any("bitgate_worker" in row[0] for row in body["files"])


def test_a_checks_reason_says_rank_expected_and_observed() -> None:
    check = Check("env X", "1", "(unset)", "env_not_as_declared", 3)
    assert check.verdict == "fail"
    assert check.reason().detail == "rank 3: env X: expected 1; observed (unset)"
