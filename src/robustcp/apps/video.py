"""Background and foreground of a surveillance video: the model of its frames, and the outliers.

A clip is a tensor pixel x colour x frame. Its background is nearly of low rank, as light comes
and goes; whoever walks through is what a robust fit leaves out. The fit is of some frames of the
clip; then all frames stream by, so that memory does not grow with the length of the clip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from robustcp._util import checks
from robustcp.estimators.cp import cp
from robustcp.model.kruskal import KruskalTensor
from robustcp.optimize.regression import project
from robustcp.optimize.solver import State
from robustcp.persist.errors import FileError, WriteError, reason
from robustcp.persist.writing import (
    Outputs,
    convert_write_errors,
    make_folder,
    open_atomic_together,
)
from robustcp.results.fit import Fit

#: The files that are written: the background, the mask, and all side by side.
OUTPUT_NAMES = ("background.png", "foreground.mp4", "side_by_side.mp4")

#: Told about each step: its name, how much is done, and of how much if that is known.
Progress = Callable[[str, int, int | None], object]

TRAINING_FRAMES = 64
TRAINING_BYTES = 200 * 2**20
#: If only some frames of a clip are wanted, the fit sees this many times as many.
LOOK_AHEAD_FACTOR = 5
#: How many pixels a frame's weights are estimated from.
MAX_SAMPLED_PIXELS = 5_000
CHUNK_FRAMES = 16
CHUNK_BYTES = 32 * 2**20
#: Entries beyond this many standard deviations are foreground.
FOREGROUND_THRESHOLD = 6.0
#: The least standard deviation of the noise, in grey levels: lossy compression adds about this.
MIN_NOISE = 3.0


@dataclass(frozen=True)
class Separation:
    """A clip in two.

    Attributes
    ----------
    frames : int
        How many frames were separated.
    size : (int, int)
        Their height and width.
    share : float
        The share of all pixels that is foreground.
    background : Path
        A picture: the background at the median of the frames' weights.
    mask : Path
        A video, white where the foreground is.
    beside : Path
        A video: the frame, its background, and its foreground, side by side.
    fit : Fit
        Of pixel x colour x frame, to some frames of the clip.
    """

    frames: int
    size: tuple[int, int]
    share: float
    background: Path
    mask: Path
    beside: Path
    fit: Fit


def separate(
    path: str | Path,
    out: str | Path,
    *,
    rank: int = 2,
    every: int = 1,
    scale: float = 1.0,
    frames: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Separation:
    """Background and foreground of a video, as files in a folder.

    Parameters
    ----------
    path : str or Path
        A video that PyAV can open.
    out : str or Path
        The folder for background.png, foreground.mp4 and side_by_side.mp4.
    rank : int
        The number of components of the background.
    every : int
        Take every k-th frame, with k this number.
    scale : float
        Frames are made smaller by this factor, from above 0 to 1. Their sides become even.
    frames : int, optional
        Take at most this many frames, from the beginning. The fit looks further ahead.
    seed : int
        Of the fit.
    progress : callable, optional
        Called with the step, how much of it is done, and of how much (None if unknown).

    Returns
    -------
    Separation

    Raises
    ------
    FileError
        If the file cannot be read as a video, is one of those that would be written, or the
        folder cannot be written. Files that are there already are replaced.
    """
    rank = checks.whole_number("rank", rank, 1)
    every = checks.whole_number("every", every, 1)
    scale = checks.real_number("scale", scale, 0.0, strict=True)
    if scale > 1:
        raise ValueError(f"scale: must be a number > 0 and <= 1, got {scale!r}")
    if frames is not None:
        frames = checks.whole_number("frames", frames, 1)
    seed = checks.whole_number("seed", seed, 0)
    report_progress = progress or (lambda step, done, total: None)

    out = Path(out)
    Outputs(path, force=True).add_folder("out", out, OUTPUT_NAMES)
    clip = _VideoReader(path, scale)
    span = None if frames is None else LOOK_AHEAD_FACTOR * frames * every
    X, frame_count = _training_tensor(clip, span, report_progress)
    total = -(-frame_count // every) if frames is None else min(-(-frame_count // every), frames)

    def report_sweep(state: State) -> None:
        report_progress("fitting", state.sweep, None)

    fit = cp(X, rank, starts=2, tol=1e-4, rng=seed, callback=report_sweep)
    model = _BackgroundModel.of(fit, X, seed)
    del X

    def report_frame(count: int) -> None:
        report_progress("separating", count, max(total, count))

    selected_frames = islice(clip.frames(every), frames)
    folder = make_folder(out)
    paths = folder / OUTPUT_NAMES[0], folder / OUTPUT_NAMES[1], folder / OUTPUT_NAMES[2]
    count, foreground_pixels = _write_outputs(
        clip, model, selected_frames, clip.rate / every, paths, report_frame
    )
    height, width = clip.size
    return Separation(count, clip.size, foreground_pixels / (count * height * width), *paths, fit)


# Reading


class _VideoReader:
    """A video file as RGB frames of one size; each walk over the frames decodes it anew."""

    def __init__(self, path: str | Path, scale: float) -> None:
        self.path = path
        self._av = _import_pyav(path)
        with self._open() as container:
            stream = container.streams.video[0]
            if not stream.width or not stream.height:
                raise FileError(path, "holds video of no size")
            self.size = _round_to_even(scale * stream.height), _round_to_even(scale * stream.width)
            rate = stream.average_rate
        self.rate = Fraction(rate) if rate and 0 < rate <= 1000 else Fraction(25)

    @contextmanager
    def _open(self) -> Iterator[Any]:
        with self._convert_read_errors(), self._av.open(str(self.path)) as container:
            if not container.streams.video:
                raise FileError(self.path, "has no video stream")
            yield container

    @contextmanager
    def _convert_read_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._av.FFmpegError, OSError, UnicodeError) as error:
            raise FileError(self.path, f"cannot be read as video ({reason(error)})") from None

    def frames(self, every: int = 1) -> Iterator[np.ndarray]:
        """Every k-th frame, uint8 of shape (height, width, 3)."""
        from av.video.reformatter import VideoReformatter

        resize = VideoReformatter().reformat
        height, width = self.size
        count = 0
        with self._open() as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            for count, frame in enumerate(container.decode(stream), 1):
                if (count - 1) % every == 0:
                    resized = resize(frame, width, height, "rgb24", interpolation="AREA")
                    yield resized.to_ndarray()
            declared_count = stream.frames
        if count < 0.99 * declared_count:
            raise FileError(self.path, f"is damaged: ends after {count} of {declared_count} frames")

    def chunk_length(self, max_frames: int, max_bytes: int) -> int:
        """How many frames fit into `max_bytes` bytes, at least 1 and at most `max_frames`."""
        height, width = self.size
        return max(1, min(max_frames, max_bytes // (3 * height * width)))


def _import_pyav(path: str | Path) -> Any:
    try:
        import av
    except ImportError:
        raise FileError(
            path, "reading it needs av; install it with: pip install 'robustcp[video]'"
        ) from None
    return av


def _round_to_even(length: float) -> int:
    return max(2, 2 * round(length / 2))


def _training_tensor(
    clip: _VideoReader, span: int | None, report_progress: Progress
) -> tuple[np.ndarray, int]:
    """Frames spread over the clip as pixel x colour x frame, and how many frames were seen.

    Nobody knows how long the clip is before its end: each time the room is used up, every other
    frame is dropped, and from then on only half as many are kept.
    """
    height, width = clip.size
    capacity = max(2, clip.chunk_length(TRAINING_FRAMES, TRAINING_BYTES))
    buffer = np.empty((capacity, height, width, 3), np.uint8)
    filled, frame_count, step = 0, 0, 1
    for frame in islice(clip.frames(), span):
        if frame_count % step == 0:
            if filled == capacity:
                filled = -(-capacity // 2)
                buffer[:filled] = buffer[::2].copy()
                step *= 2
            if frame_count % step == 0:
                buffer[filled] = frame
                filled += 1
        frame_count += 1
        report_progress("reading", frame_count, span)
    if not frame_count:
        raise FileError(clip.path, "has no frames")
    return buffer[:filled].reshape(filled, height * width, 3).transpose(1, 2, 0), frame_count


def _chunks(frames: Iterator[np.ndarray], length: int) -> Iterator[list[np.ndarray]]:
    while chunk := list(islice(frames, length)):
        yield chunk


# The two parts of a frame


@dataclass(frozen=True, eq=False)
class _BackgroundModel:
    """What the fit knows: pixel and colour factors, and how their residuals usually are."""

    pixels: np.ndarray
    colours: np.ndarray
    offset: np.ndarray
    limit: np.ndarray
    sampled_pixels: np.ndarray

    @classmethod
    def of(cls, fit: Fit, X: np.ndarray, seed: int) -> _BackgroundModel:
        pixels = np.asarray(fit.factors[0], np.float32)
        colours = np.asarray(fit.factors[1], np.float32)
        frames = np.asarray(fit.factors[2] * fit.weights, np.float32)
        offset, limit = _residual_limits(X, pixels, colours, frames, fit.scale)
        rng = np.random.default_rng(seed)
        sampled_pixels = np.sort(rng.permutation(len(pixels))[:MAX_SAMPLED_PIXELS])
        return cls(pixels, colours, offset, limit, sampled_pixels)

    def weights(self, chunk: list[np.ndarray]) -> np.ndarray:
        """The weights of each frame's components, from some of its pixels."""
        X = np.stack([frame.reshape(-1, 3)[self.sampled_pixels] for frame in chunk], axis=2)
        rows = self.pixels[self.sampled_pixels].astype(np.float64), self.colours.astype(np.float64)
        model = KruskalTensor.from_factors([*rows, np.ones((1, rows[0].shape[1]))])
        return np.asarray(project(model, X, 2))

    def background(self, w: np.ndarray) -> np.ndarray:
        """A frame with these weights, pixel x colour: the model, and what it always lacks."""
        return np.asarray(self.pixels @ (self.colours * w.astype(np.float32)).T + self.offset)

    def split(self, frame: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The background of a frame, and where it is foreground."""
        background = self.background(w)
        deviates = np.abs(frame.reshape(-1, 3) - background) > self.limit
        mask = deviates.any(axis=1).reshape(frame.shape[:2])
        return _grey_levels(background.reshape(frame.shape)), _majority_filter(mask)


def _residual_limits(
    X: np.ndarray, pixels: np.ndarray, colours: np.ndarray, frames: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """The median residual of each pixel and colour, and from where on it is out of the ordinary.

    What the components lack of a colour is there in every frame, so it is not foreground. Leaves
    and water are never still, so their noise is larger than that of the whole clip.
    """
    offset = np.empty(X.shape[:2], np.float32)
    spread = np.empty(X.shape[:2], np.float32)
    colour_frames = np.einsum("cr,fr->rcf", colours, frames).reshape(len(colours.T), -1)
    for start in range(0, len(X), 4096):
        rows = slice(start, start + 4096)
        block = X[rows]
        R = block - (pixels[rows] @ colour_frames).reshape(block.shape)
        offset[rows] = np.median(R, axis=2)
        spread[rows] = 1.4826 * np.median(np.abs(R - offset[rows, :, None]), axis=2)
    return offset, FOREGROUND_THRESHOLD * np.maximum(spread, max(noise, MIN_NOISE))


def _majority_filter(mask: np.ndarray) -> np.ndarray:
    """Each pixel as most of the 3 x 3 around it are."""
    height, width = mask.shape
    padded = np.pad(mask, 1).astype(np.uint8)
    rows = padded[:height] + padded[1:-1] + padded[2:]
    return np.asarray(rows[:, :width] + rows[:, 1:-1] + rows[:, 2:] >= 5)


def _grey_levels(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip(np.rint(values), 0, 255), np.uint8)


def _mask_image(mask: np.ndarray) -> np.ndarray:
    return np.repeat(np.where(mask, np.uint8(255), np.uint8(0))[..., None], 3, axis=2)


def _side_by_side(frame: np.ndarray, background: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.concatenate([frame, background, frame * mask[..., None]], axis=1)


# Writing


def _write_outputs(
    clip: _VideoReader,
    model: _BackgroundModel,
    frames: Iterator[np.ndarray],
    rate: Fraction,
    paths: Sequence[Path],
    report_frame: Callable[[int], None],
) -> tuple[int, int]:
    """Write the three files; give the numbers of frames and of pixels in the foreground."""
    height, width = clip.size
    weights: list[np.ndarray] = []
    foreground_pixels = 0
    with open_atomic_together(*paths) as (picture_file, mask_file, side_by_side_file):
        with (
            _VideoWriter(paths[1], mask_file, rate, height, width) as mask_video,
            _VideoWriter(
                paths[2], side_by_side_file, rate, height, 3 * width
            ) as side_by_side_video,
        ):
            for chunk in _chunks(frames, clip.chunk_length(CHUNK_FRAMES, CHUNK_BYTES)):
                for frame, w in zip(chunk, model.weights(chunk), strict=True):
                    background, foreground = model.split(frame, w)
                    mask_video.add(_mask_image(foreground))
                    side_by_side_video.add(_side_by_side(frame, background, foreground))
                    foreground_pixels += int(foreground.sum())
                    weights.append(w)
                    report_frame(len(weights))
        median_background = model.background(np.median(weights, axis=0)).reshape(height, width, 3)
        with convert_write_errors(paths[0]):
            _write_image(picture_file, _grey_levels(median_background))
    return len(weights), foreground_pixels


def _write_image(file: BinaryIO, image: np.ndarray) -> None:
    from matplotlib.image import imsave

    imsave(file, image, format="png")


@contextmanager
def _convert_write_errors(path: Path) -> Iterator[None]:
    """Say that a video cannot be written, where PyAV or the system says that something failed."""
    import av

    try:
        yield
    except (av.FFmpegError, OSError) as error:
        raise WriteError.of(path, error) from error


class _VideoWriter:
    """A video file that common players open, written frame by frame."""

    def __init__(self, path: Path, file: BinaryIO, rate: Fraction, height: int, width: int) -> None:
        import av

        self.path = path
        self.count = 0
        rate = rate.limit_denominator(1001)
        with _convert_write_errors(path):
            self.container = av.open(file, "w", format="mp4")
            try:
                if "libx264" in av.codecs_available:
                    options = {"crf": "18", "preset": "veryfast"}
                    stream = self.container.add_stream("libx264", rate, options=options)
                else:
                    stream = self.container.add_stream("mpeg4", rate)
                    stream.bit_rate = 8 * height * width
            except BaseException:
                self.container.close()
                raise
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            self.stream = stream
            self.time_base = 1 / rate

    def add(self, image: np.ndarray) -> None:
        from av import VideoFrame

        frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts, frame.time_base = self.count, self.time_base
        self.count += 1
        with _convert_write_errors(self.path):
            self.container.mux(self.stream.encode(frame))

    def __enter__(self) -> _VideoWriter:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            with _convert_write_errors(self.path):
                self.container.mux(self.stream.encode(None))
                self.container.close()
        else:
            with suppress(Exception):
                self.container.close()
