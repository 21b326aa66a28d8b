"""Every option is honoured, or refused in a sentence: none is accepted and dropped."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from processes import TEXT
from tiny import LLAMA, make_model

from cachegen_cli import calibrate, capture, write_capture

NEXT = "In the morning the ferryman found the rope cut."
CHANGES, SAME = "changes the result", "is what is usual"
SCHEMES = ("group", "mlx", "cachegen", "uniform", "transform", "exact")
WITHOUT_WIDTHS = ("cachegen", "uniform", "transform", "exact")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("wide") / "m", LLAMA | {"head_dim": 64})


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cache") / "c.safetensors"
    write_capture(capture(str(folder), TEXT, keep_cache=True), path)
    return path


@pytest.fixture(scope="module")
def profile(folder, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "p.safetensors"
    calibrate(str(folder), [NEXT * 4, NEXT.upper() * 4], path, weigh=0)
    return path


def figures(done) -> dict:
    """What was measured, but the length of a header, which holds what was typed."""
    assert done.code == 0, done.err
    data = json.loads(done.out)
    for name in ("container_bytes", "container_header_bytes"):
        del data["totals"][name]
    return {key: data[key] for key in ("layers", "totals", "quality")}


def refused(done, words: str) -> None:
    """One sentence and one hint, and nothing else."""
    assert done.code in (1, 2) and done.out == "" and words in done.err
    error, hint = done.err.splitlines()
    assert error.startswith("error: ") and hint.startswith("hint: ")


def each(words: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, words)


# option -> what it does under each scheme
OPTIONS: dict[tuple[str, ...], dict[str, str]] = {
    ("--bits", "3"): each(CHANGES, "group", "mlx") | each("no code width", *WITHOUT_WIDTHS),
    ("--bits", "4"): each(SAME, "group", "mlx") | each("no code width", *WITHOUT_WIDTHS),
    ("--key-bits", "3"): each(CHANGES, "group", "mlx") | each("no code width", *WITHOUT_WIDTHS),
    ("--value-bits", "3"): each(CHANGES, "group", "mlx") | each("no code width", *WITHOUT_WIDTHS),
    ("--bits", "2", "--key-bits", "3", "--value-bits", "3"): each("no use beside", *SCHEMES),
    ("--group-size", "32"): {"group": SAME, "mlx": CHANGES} | each("no groups", *WITHOUT_WIDTHS),
    ("--group-size", "64"): {"group": CHANGES, "mlx": SAME} | each("no groups", *WITHOUT_WIDTHS),
    ("--group-size", "7"): {"group": CHANGES} | each("no groups", "mlx", *WITHOUT_WIDTHS),
    ("--schedule", "depth"): each(CHANGES, "group", "mlx")
    | each("no code widths to schedule", *WITHOUT_WIDTHS),
    ("--delta", "on"): each(CHANGES, "group", "mlx", "cachegen", "exact")
    | each("codes no token deltas", "uniform", "transform"),
    ("--delta", "off"): each("either", *SCHEMES),
    ("--pooled",): each(CHANGES, *SCHEMES),
    ("--keep-first", "5"): each(CHANGES, *SCHEMES),
    ("--keep-last", "5"): each(CHANGES, *SCHEMES),
    ("--profile", "PROFILE"): each("uses no profile", "group", "mlx", "uniform", "exact")
    | {"cachegen": CHANGES, "transform": SAME},
    ("--detail", "--wide"): each("has no place for --detail", *SCHEMES),
    ("--detail",): each(CHANGES, *SCHEMES),
}


@pytest.fixture(scope="module")
def plain() -> dict[str, dict]:
    """Figures of each scheme without options."""
    return {}


@pytest.mark.parametrize(
    ("option", "scheme"), list(product(OPTIONS, SCHEMES)), ids=lambda part: "".join(part)
)
def test_options_under_every_scheme(cachegen, file, profile, plain, option, scheme):
    needed = ("--profile", profile) if scheme == "transform" else ()
    asked = ("analyze", "--prompt-cache-file", file, "--scheme", scheme, *needed)
    given = [profile if word == "PROFILE" else word for word in option]
    told = () if "--wide" in option else ("--json",)
    done = cachegen(*asked, *given, *told)
    wanted = OPTIONS[option][scheme]
    if wanted not in (CHANGES, SAME, "either"):
        refused(done, wanted)
        return
    if scheme not in plain:
        plain[scheme] = figures(cachegen(*asked, "--json"))
    found = figures(done)
    if wanted == "either":  # smaller by channel than the codes are, or not
        assert not any(t["delta"] for la in found["layers"] for t in (la["keys"], la["values"]))
    else:
        assert (found == plain[scheme]) == (wanted == SAME)


OF_SCHEMES = {
    "group:group_size=7": CHANGES, "mlx:group_size=32": CHANGES, "mlx:group_size=64": SAME,
    "cachegen:bins=8": CHANGES, "cachegen:chunk=16": CHANGES, "cachegen:chunk=256": SAME,
    "uniform:error=0.1": CHANGES, "uniform:step=0.1": CHANGES, "uniform:bits=2.5": CHANGES,
    "uniform:error=0.05": SAME, "uniform:kl=0.1": "has to measure quality",
    "transform:error=0.3": CHANGES, "transform:step=0.5": CHANGES,
    "transform:basis=layer": CHANGES, "transform:basis=model": SAME,
    "transform:bits=2": CHANGES, "exact:bits=4": "has no option",
    "group:bits=4": "has no option", "mlx:bits=4": "has no option",
    "uniform:error=0.1,step=1": "one of error, step",
}  # fmt: skip


@pytest.mark.parametrize(("scheme", "wanted"), OF_SCHEMES.items())
def test_options_of_schemes(cachegen, file, profile, scheme, wanted):
    name = scheme.partition(":")[0]
    needed = ("--profile", profile) if name == "transform" else ()
    asked = ("analyze", "--prompt-cache-file", file, *needed, "--json", "--scheme")
    done = cachegen(*asked, scheme)
    if wanted not in (CHANGES, SAME):
        refused(done, wanted)
    else:
        assert (figures(done) == figures(cachegen(*asked, name))) == (wanted == SAME)


LIVE, FILE, BOTH, ENV = "a model", "a file", "a file and a model", "a file and CACHEGEN_MODEL"
NO_MODEL = "is for a model, and none is loaded here"
# option -> what it does where the cache comes from
OF_SOURCES: dict[tuple[str, ...], dict[str, str]] = {
    ("--chat",): {LIVE: "no chat template"} | each("has its prompt", FILE, BOTH, ENV),
    ("--max-prompt-tokens", "20"): {LIVE: CHANGES} | each("has its prompt", FILE, BOTH, ENV),
    # this model makes its own caches, which a warning says (test_kvbits)
    ("--max-kv-size", "16"): {LIVE: SAME} | each("and its size", FILE, BOTH, ENV),
    ("--adapter-path", "none"): each("no adapter_config.json", LIVE, BOTH)
    | each(NO_MODEL, FILE, ENV),
    ("--revision", "main"): each("no hub model", LIVE, BOTH) | each(NO_MODEL, FILE, ENV),
    ("--trust-remote-code",): each(SAME, LIVE, BOTH) | each(NO_MODEL, FILE, ENV),
    ("--text-key", "text"): each("--text-key is for .jsonl files", LIVE, FILE, BOTH, ENV),
    ("--shard", "tensor"): {LIVE: "for several processes"} | each("is not cut", FILE, BOTH, ENV),
    ("--continuation", "20"): {LIVE: CHANGES} | each("a text after it is read whole", FILE)
    | each("a text after it is read whole", BOTH, ENV),
    ("--prompt", NEXT): each("is for quality, which is not measured", FILE, BOTH, ENV),
    ("--prompt", NEXT, "--quality"): {FILE: "needs the model"} | each(CHANGES, BOTH, ENV),
    ("--quality",): {LIVE: CHANGES} | each("no continuation", FILE, BOTH, ENV),
}  # fmt: skip


@pytest.mark.parametrize(
    ("option", "source"),
    [(option, source) for option, wanted in OF_SOURCES.items() for source in wanted],
    ids=lambda part: "".join(part),
)
def test_options_of_the_source(cachegen, folder, file, monkeypatch, option, source):
    given = {
        LIVE: ("--model", folder, "--prompt", TEXT),
        FILE: ("--prompt-cache-file", file),
        BOTH: ("--prompt-cache-file", file, "--model", folder),
        ENV: ("--prompt-cache-file", file),
    }[source]
    if source == ENV:
        monkeypatch.setenv("CACHEGEN_MODEL", str(folder))
    done = cachegen("analyze", *given, *option, "--json", "-q")
    wanted = OF_SOURCES[option][source]
    if wanted not in (CHANGES, SAME):
        refused(done, wanted)
    else:
        same = figures(done) == figures(cachegen("analyze", *given, "--json"))
        assert same == (wanted == SAME)


def test_the_key_of_a_text_that_comes_next_is_read(cachegen, folder, file, tmp_path):
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "not this one, not at all", "b": NEXT}))
    given = ("quality", "--prompt-cache-file", file, "--model", folder, "--json")
    named = cachegen(*given, "--prompt", f"@{tmp_path / 't.jsonl'}", "--text-key", "b")
    assert figures(named) == figures(cachegen(*given, "--prompt", NEXT))


REFUSED = {
    "sweep of one setting": (("sweep", "--scheme", "uniform", "--bits", "2,4"), "no code width"),
    "sweep of no groups": (("sweep", "--scheme", "exact", "--group-size", "32"), "no groups"),
    "sweep twice": (("sweep", "--scheme", "mlx:group_size=32", "--group-size", "64"), "not both"),
    "sweep of what mlx lacks": (("sweep", "--scheme", "mlx", "--group-size", "32,48"), "of 48"),
    "choices": (("plan", "--target-bits", "4", "--scheme", "exact", "--choices", "2"),
                "no code widths to plan"),
    "choices of mlx": (("plan", "--target-bits", "4", "--scheme", "mlx", "--choices", "2,7"),
                       "no 7-bit"),
    "groups of a plan": (("plan", "--target-bits", "4", "--scheme", "mlx", "--group-size", "16"),
                         "no groups of 16"),
    "chunks to verify": (("verify", "--scheme", "cachegen:chunk=9"), "not told here"),
    "chunks of tensors": (("sensitivity", "--scheme", "cachegen:chunk=9"), "not told here"),
    "chunks to compare": (("compare", "--schemes", "group,cachegen:chunk=9"), "not told here"),
    "what compare varies": (("compare", "--schemes", "uniform:error=0.1"), "needs its error free"),
    "profile for none": (("compare", "--schemes", "group,mlx", "--profile", "PROFILE"),
                         "uses a profile"),
    "deltas to verify": (("verify", "--scheme", "uniform", "--delta", "on"), "no token deltas"),
    "prompt to verify": (("verify", "--prompt-cache-file", "FILE", "--prompt", NEXT), "quality"),
    "prompt to pack": (("pack", "--prompt-cache-file", "FILE", "--prompt", NEXT, "-o", "c.cgkv"),
                       "is for quality"),
    "prompt of insights": (("insights", "--no-sensitivity", "--prompt-cache-file", "FILE",
                            "--prompt", NEXT), "is for quality"),
    "detail as csv": (("analyze", "--detail", "-o", "a.csv"), "no place for --detail"),
    "detail as markdown": (("analyze", "--detail", "-f", "markdown"), "no place for --detail"),
    "sorted json": (("analyze", "--json", "--sort", "coded_bytes"), "holds every row"),
    "layers of a page": (("analyze", "-f", "html", "--layers", "1"), "holds every row"),
    "top of json": (("sweep", "--json", "--top", "1"), "holds every row"),
    "a folder and a model": (("pack", "--all", ".", "--model", "m"), "without --model"),
    "a folder and a prompt": (("pack", "--all", ".", "--prompt", "a"), "without --prompt"),
    "a folder and a file": (("pack", "--all", ".", "--prompt-cache-file", "FILE"), "without"),
    "a folder and a size": (("pack", "--all", ".", "--max-kv-size", "9"), "--max-kv-size"),
    "a packed file and a folder": (("unpack", "x.cgkv", "--all", "."), "leave out 'x.cgkv'"),
    "cache of a cache": (("capture", "--prompt-cache-file", "FILE", "-o", "a.safetensors"),
                         "captured already"),
    "profile of a cache": (("calibrate", "--prompt-cache-file", "FILE", "-o", "a.safetensors"),
                           "made from texts"),
}  # fmt: skip


@pytest.mark.parametrize(("command", "words"), REFUSED.values(), ids=REFUSED)
def test_what_would_be_dropped_is_refused(
    cachegen, folder, file, profile, tmp_path, monkeypatch, command, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CACHEGEN_MODEL", str(folder))
    names = {"FILE": file, "PROFILE": profile}
    refused(cachegen(*(names.get(word, word) for word in command), "-q"), words)
    assert not list(tmp_path.iterdir())


def test_a_profile_that_a_file_does_not_need(cachegen, file, profile, tmp_path):
    packed = {name: tmp_path / f"{name}.cgkv" for name in ("group", "transform")}
    for name, path in packed.items():
        needed = ("--profile", profile) if name == "transform" else ()
        given = ("--prompt-cache-file", file, "--scheme", name, *needed)
        assert cachegen("pack", *given, "-o", path).code == 0
    back = tmp_path / "b.safetensors"
    done = cachegen("unpack", packed["group"], "--profile", profile, "-o", back)
    refused(done, "was packed without a profile")
    assert cachegen("unpack", packed["transform"], "--profile", profile, "-o", back).code == 0


def test_verify_makes_no_estimate(cachegen, quick):
    done = cachegen("verify", *quick, "--pooled")
    assert done.code == 2 and "No such option: --pooled" in done.err


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_usual_is_never_refused(cachegen, folder, file, profile, scheme):
    needed = ("--profile", profile) if scheme == "transform" else ()
    for source in (("--model", folder, "--prompt", TEXT), ("--prompt-cache-file", file)):
        for command in ("analyze", "sweep", "verify"):
            done = cachegen(command, *source, "--scheme", scheme, *needed, "-q")
            assert done.code == 0 and done.err == ""
