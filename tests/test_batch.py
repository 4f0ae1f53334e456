import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import xarray

import robustcp
from robustcp import Observed, cp, cp_many, simulate
from robustcp.inference.parallel import run_parallel

SIMULATED = [simulate((9, 8, 7), 2, eta=0.1, gamma=1.0, rng=k) for k in range(4)]
TENSORS = [sim.data for sim in SIMULATED]


def equal(one, other):
    return all(np.array_equal(A, B) for A, B in zip(one.factors, other.factors, strict=True))


@pytest.mark.process
@pytest.mark.parametrize("options", [{}, {"jobs": 1}, {"backend": "threads"}, {"jobs": 3}])
def test_each_fit_is_that_of_cp_alone(options):
    fits = cp_many(TENSORS, 2, **options)
    assert len(fits) == 4
    for X, fit in zip(TENSORS, fits, strict=True):
        assert equal(fit, cp(X, 2))


@pytest.mark.process
def test_shapes_and_kinds_may_differ():
    X = TENSORS[0]
    listed = Observed(np.argwhere(X < 1e9), X.ravel(), X.shape)
    missing = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)
    fits = cp_many([X, TENSORS[1][:6], listed, missing], 2, jobs=2)
    assert [fit.shape for fit in fits] == [(9, 8, 7), (6, 8, 7), (9, 8, 7), (9, 8, 7)]
    assert equal(fits[3], cp(missing, 2))


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_bad_tensor_does_not_end_the_others(jobs):
    bad = np.full((3, 3, 3), np.nan)
    with pytest.warns(UserWarning, match=r"2 of 4 tensors could not be fitted \(0: X: all"):
        fits = cp_many([bad, TENSORS[0], "text", TENSORS[1]], 2, jobs=jobs)
    assert fits[0] is None
    assert fits[2] is None
    assert equal(fits[3], cp(TENSORS[1], 2))
    assert sorted(fits.failures) == [0, 2]
    assert "missing" in str(fits.failures[0])
    again = pickle.loads(pickle.dumps(fits))
    assert again[1].shape == (9, 8, 7)
    assert sorted(again.failures) == [0, 2]


def test_generators_are_drawn_from_while_fits_run_and_progress_is_told():
    told = []
    fits = cp_many((X for X in TENSORS), 2, jobs=2, progress=lambda *at: told.append(at))
    assert told == [(k, None) for k in (1, 2, 3, 4)]
    told.clear()
    cp_many(TENSORS, 2, jobs=1, warm=True, progress=lambda *at: told.append(at))
    assert told == [(k, 4) for k in (1, 2, 3, 4)]
    assert len(fits) == 4
    assert len(cp_many([], 2)) == 0


def test_a_shared_generator_gives_all_the_same_numbers():
    fits = cp_many([TENSORS[0]] * 3, 2, jobs=1, rng=np.random.default_rng(3))
    assert equal(fits[0], fits[1])
    assert equal(fits[0], fits[2])


def test_warm_fits_begin_at_the_first_and_end_at_the_truth():
    rng = np.random.default_rng(0)
    truth = simulate((15, 14, 13), 3, eta=0, gamma=0, noise=0, rng=0)
    size = 0.1 * np.std(truth.data)
    tensors = [truth.data + size * rng.standard_normal(truth.data.shape) for _ in range(4)]
    cold, warm = cp_many(tensors, 3, jobs=1), cp_many(tensors, 3, jobs=1, warm=True)
    assert equal(cold[0], warm[0])
    assert all(len(fit.starts) == 1 for fit in warm[1:])
    for fit in warm:
        assert robustcp.factor_match_score(fit, truth.truth) > 0.98


def test_a_warm_start_from_another_model_is_not_trusted():
    a, b = (simulate((15, 14, 13), 3, eta=0.1, gamma=2.0, rng=k) for k in (0, 1))
    fits = cp_many([a.data, b.data], 3, jobs=1, warm=True)
    assert robustcp.factor_match_score(fits[1], b.truth) > 0.97


def test_a_folder_keeps_fits_and_the_same_call_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "fits"
    fits = cp_many(TENSORS[:3], 2, jobs=1, folder=folder)
    assert len(list(folder.iterdir())) == 3
    called = []
    monkeypatch.setattr(
        "robustcp.inference.batch.cp", lambda X, *_, **__: called.append(X) or cp(X, 2)
    )
    again = cp_many(TENSORS, 2, jobs=1, folder=folder)
    assert len(called) == 1
    assert called[0] is TENSORS[3]
    assert all(equal(one, other) for one, other in zip(fits, again, strict=False))
    cp_many(TENSORS[:1], 2, jobs=1, folder=folder, starts=2)  # another call
    assert len(called) == 2


def test_a_folder_tells_data_with_other_labels_apart(tmp_path):
    sizes = TENSORS[0].shape
    for first in "ab":
        labels = [f"{first}{k}" for k in range(sizes[0])]
        X = xarray.DataArray(TENSORS[0], dims=("x", "y", "z"), coords={"x": labels})
        (fit,) = cp_many([X], 2, jobs=1, folder=tmp_path)
        assert fit.labels[0] == labels


@pytest.mark.parametrize("options", [{"warm": True}, {"init": cp(TENSORS[0], 2)}])
def test_a_folder_does_not_depend_on_the_number_of_jobs(options, tmp_path):
    near = [TENSORS[0] + 1e-3 * k for k in range(3)]
    names = []
    for jobs in (2, 1):
        cp_many(near, 2, jobs=jobs, folder=tmp_path, starts=1, **options)
        names.append(sorted(path.name for path in tmp_path.iterdir()))
    assert names[0] == names[1]


def test_a_relative_folder_is_meant_where_the_call_is(tmp_path, monkeypatch):
    for name in ("first", "second"):  # the processes of the first call, kept for the second
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        cp_many(TENSORS[:2], 2, jobs=2, backend="processes", folder="fits", starts=1)
        assert len(list((tmp_path / name / "fits").iterdir())) == 2


def test_a_damaged_file_is_written_anew(tmp_path):
    (fit,) = cp_many(TENSORS[:1], 2, jobs=1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:100])
    (again,) = cp_many(TENSORS[:1], 2, jobs=1, folder=tmp_path)
    assert equal(fit, again)
    assert equal(robustcp.load(path), fit)


@pytest.mark.process
def test_scripts_need_no_guard(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import robustcp
        tensors = [robustcp.simulate((6, 5, 4), 1, eta=0, gamma=0, rng=k).data for k in range(3)]
        print(robustcp.cp_many(tensors, 1, jobs=2))
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "Fits(3 tensors)\n"


def test_an_exception_is_a_result():
    found = run_parallel(int, ["1", "x", "3"], jobs=2)
    assert found[::2] == [1, 3]
    assert isinstance(found[1], ValueError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "^rank: "),
        ({"backend": "cloud"}, "^backend: must be one of"),
        ({"jobs": 0}, "^jobs: "),
        ({"tensors": 3}, "^tensors: must be several"),
        ({"checkpoint": "x.ckpt"}, "^checkpoint: is for one fit"),
        ({"callback": print}, "^callback: is for one fit"),
        ({"tol": -1.0, "jobs": 1}, "^tol: "),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        cp_many(**{"tensors": TENSORS, "rank": 2, **arguments})
