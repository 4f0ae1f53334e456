"""Background and foreground of a small clip that is made here."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from robustcp.apps.video import (
    _BackgroundModel,
    _majority_filter,
    _training_tensor,
    _VideoReader,
    separate,
)
from robustcp.io.reading import FileError

av = pytest.importorskip("av")

HEIGHT, WIDTH, COUNT, SIDE = 48, 64, 30, 10
OUTPUTS = ["background.png", "foreground.mp4", "side_by_side.mp4"]


def corner(k):
    """Where the square of frame k begins."""
    return 16, 2 + (48 * k) // COUNT


def truth():
    """The background, and the clip with a square that walks through it."""
    rng = np.random.default_rng(1)
    texture = np.kron(rng.uniform(60, 120, (6, 8)), np.ones((8, 8)))
    background = texture[..., None] * np.array([1.0, 0.9, 0.7])
    clip = []
    for k in range(COUNT):
        frame = background * (1 + 0.1 * np.sin(k / 5)) + rng.normal(0, 1, background.shape)
        y, x = corner(k)
        frame[y : y + SIDE, x : x + SIDE] = 230
        clip.append(np.clip(frame, 0, 255).astype(np.uint8))
    return background, clip


def write(path, frames, codec="mpeg4", **options):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, 10, options=options)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], "yuv420p"
        stream.bit_rate = 4_000_000
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))


def decoded(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert stream.pix_fmt == "yuv420p"
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = tmp_path_factory.mktemp("clip") / "clip.avi"
    write(path, truth()[1])
    return path


@pytest.fixture(scope="module")
def parts(clip, tmp_path_factory):
    told = []
    out = tmp_path_factory.mktemp("video") / "new" / "out"
    result = separate(clip, out, rank=1, progress=lambda *step: told.append(step))
    return result, out, told


@pytest.mark.pictures
def test_the_files_are_whole(parts):
    result, out, _ = parts
    assert sorted(path.name for path in out.iterdir()) == OUTPUTS
    assert (result.background, result.mask, result.beside) == tuple(out / name for name in OUTPUTS)
    assert (result.frames, result.size) == (COUNT, (HEIGHT, WIDTH))
    assert result.fit.shape[:2] == (HEIGHT * WIDTH, 3)
    masks, beside = decoded(result.mask), decoded(result.beside)
    assert len(masks) == len(beside) == COUNT
    assert masks[0].shape == (HEIGHT, WIDTH, 3)
    assert beside[0].shape == (HEIGHT, 3 * WIDTH, 3)


def test_the_square_is_foreground(parts):
    result, _, _ = parts
    for k, mask in enumerate(decoded(result.mask)):
        y, x = corner(k)
        white = mask[..., 0] > 127
        inside = white[y + 1 : y + SIDE - 1, x + 1 : x + SIDE - 1]
        assert inside.mean() > 0.95
        assert white.sum() < 1.6 * SIDE**2
    assert 0.7 < result.share / (SIDE**2 / (HEIGHT * WIDTH)) < 1.5


def test_the_background_is_empty(parts):
    from matplotlib.image import imread

    result, _, _ = parts
    picture = 255 * imread(result.background)[..., :3]
    background, _ = truth()
    assert picture.shape == background.shape
    # the median of the light, and lossy compression
    light = np.median(picture / background)
    assert abs(light - 1) < 0.1
    assert np.abs(picture - light * background).mean() < 5
    y, x = corner(COUNT // 2)
    assert picture[y : y + SIDE, x : x + SIDE].max() < 180


def test_side_by_side_shows_frame_background_and_foreground(parts):
    result, _, _ = parts
    k = COUNT // 2
    frame, background, foreground = np.split(decoded(result.beside)[k].astype(float), 3, axis=1)
    y, x = corner(k)
    middle = slice(y + 3, y + SIDE - 3), slice(x + 3, x + SIDE - 3)
    assert frame[middle].mean() > 200
    assert background[middle].mean() < 150
    assert foreground[middle].mean() > 200
    assert foreground[:10].mean() < 5


def test_progress_is_told(parts):
    _, _, told = parts
    steps = [step for step, _, _ in told]
    assert list(dict.fromkeys(steps)) == ["reading", "fitting", "separating"]
    assert told[-1] == ("separating", COUNT, COUNT)


@pytest.mark.pictures
def test_every_frames_and_scale(clip, tmp_path):
    result = separate(clip, tmp_path, rank=1, every=3, frames=4, scale=0.4)
    # 48 x 64 by 0.4 is 19.2 x 25.6
    assert (result.frames, result.size) == (4, (20, 26))
    assert [frame.shape for frame in decoded(result.mask)] == [(20, 26, 3)] * 4
    with av.open(str(result.beside)) as container:
        assert float(container.streams.video[0].average_rate) == pytest.approx(10 / 3, rel=0.01)
    assert separate(clip, tmp_path, rank=1, every=7, scale=0.5).frames == 5


@pytest.mark.pictures
def test_the_same_seed_gives_the_same_files(clip, tmp_path):
    first, second = (
        separate(clip, tmp_path / name, rank=1, scale=0.5, frames=8, seed=3) for name in "ab"
    )
    assert first.share == second.share
    assert first.background.read_bytes() == second.background.read_bytes()


@pytest.mark.pictures
def test_a_long_clip_is_thinned_for_the_fit(clip, tmp_path, monkeypatch):
    monkeypatch.setattr("robustcp.apps.video.TRAINING_FRAMES", 8)
    result = separate(clip, tmp_path, rank=1, scale=0.5)
    assert result.frames == COUNT
    assert 4 <= result.fit.shape[2] <= 8


def damaged(kind, clip, folder):
    path = folder / "bad.avi"
    whole = clip.read_bytes()
    if kind == "text":
        path.write_text("this is not a video\n" * 50)
    elif kind == "empty":
        path.touch()
    elif kind == "head":
        path.write_bytes(whole[:100])
    elif kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "subtitles":
        path = folder / "bad.srt"
        path.write_text("1\n00:00:01,000 --> 00:00:02,000\nhello\n\n")
    elif kind == "folder":
        path.mkdir()
    return path


@pytest.mark.parametrize(
    "kind", ["text", "empty", "head", "truncated", "subtitles", "folder", "absent"]
)
def test_files_that_are_no_video(kind, clip, tmp_path):
    path = damaged(kind, clip, tmp_path)
    out = tmp_path / "out"
    with pytest.raises(FileError) as caught:
        separate(path, out, rank=1)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert "\n" not in text
    assert not out.exists()


@pytest.mark.pictures
def test_nothing_is_left_when_it_breaks_halfway(clip, tmp_path, monkeypatch):
    (tmp_path / "foreground.mp4").write_text("of before")

    def interrupted(step, done, total):
        if (step, done) == ("separating", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        separate(clip, tmp_path, rank=1, scale=0.5, progress=interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["foreground.mp4"]
    assert (tmp_path / "foreground.mp4").read_text() == "of before"


def test_a_folder_that_cannot_be_written(clip, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"file: cannot be written"):
        separate(clip, tmp_path / "file", rank=1)


def test_without_pyav(clip, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(FileError, match=r"needs av; install it with: pip install 'robustcp"):
        separate(clip, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 0), ("every", 0), ("every", 1.5), ("scale", 0.0), ("scale", 1.5), ("scale", "x"),
     ("frames", 0), ("seed", -1)],
)  # fmt: skip
def test_bad_arguments(name, value, clip, tmp_path):
    with pytest.raises(ValueError, match=rf"^{name}: must be .*, got "):
        separate(clip, tmp_path, **{name: value})
    assert not list(tmp_path.iterdir())


def test_majority_drops_specks_and_fills_holes():
    mask = np.zeros((9, 9), bool)
    mask[1, 1] = True
    mask[3:8, 3:8] = True
    mask[5, 5] = False
    cleaned = _majority_filter(mask)
    assert not cleaned[1, 1]
    assert cleaned[5, 5]
    assert cleaned[4:7, 4:7].all()


@pytest.mark.slow
def test_two_hundred_damaged_copies(tmp_path):
    clip = tmp_path / "clip.avi"
    frames = np.random.default_rng(1).integers(0, 255, (10, 32, 48, 3)).astype(np.uint8)
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for picture in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    whole, rng = clip.read_bytes(), np.random.default_rng(0)
    for k in range(200):
        content = bytearray(whole)
        if k % 3 == 0:
            content = content[: int(rng.integers(len(content)))]
        else:
            for at in rng.integers(len(content), size=int(rng.integers(1, 9))):
                content[at] = int(rng.integers(256))
        (tmp_path / "damaged.avi").write_bytes(bytes(content))
        out = tmp_path / f"out{k}"
        try:
            separate(tmp_path / "damaged.avi", out)
        except FileError:
            assert not out.exists() or not list(out.iterdir())


@pytest.mark.parametrize("room", [4, 5])
def test_frames_for_the_fit_are_spread_over_the_clip(clip, monkeypatch, room):
    reader = _VideoReader(clip, 1.0)
    monkeypatch.setattr(_VideoReader, "chunk_length", lambda *_: room)
    X, seen = _training_tensor(reader, None, lambda *_: None)
    step = 2 ** int(np.ceil(np.log2(COUNT / room)))
    expected = list(reader.frames())[::step]
    assert seen == COUNT
    assert X.shape[2] == len(expected)
    for k, frame in enumerate(expected):
        assert np.array_equal(X[:, :, k], frame.reshape(-1, 3))


def test_foreground_is_beyond_the_limit_and_not_at_it():
    frame = np.full((5, 5, 3), 10, np.uint8)
    pixels, colours = np.full((25, 1), 8.0, np.float32), np.ones((3, 1), np.float32)
    for limit, expected in ((2.0, False), (1.5, True)):
        scene = _BackgroundModel(
            pixels, colours, np.zeros((25, 3)), np.full((25, 3), limit), np.arange(25)
        )
        assert scene.split(frame, np.ones(1))[1][2, 2] == expected
