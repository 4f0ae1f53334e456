"""Background and moving people of a surveillance clip, by CP of pixel x colour x frame.

Without a clip it makes one: a textured wall in slowly changing light, and a bright square that
moves across it.

    python examples/video.py clip.avi --out video     # or without a clip
"""

import argparse
from pathlib import Path

import av
import matplotlib.pyplot as plt
import numpy as np

from robustcp.apps.video import separate


def make_clip(path: Path, frames: int = 40, height: int = 96, width: int = 128) -> None:
    """A small clip to try."""
    rng = np.random.default_rng(0)
    wall = rng.integers(60, 160, (height // 8, width // 8, 3)).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as clip:
        stream = clip.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for k in range(frames):
            picture = (wall * (1 + 0.1 * np.sin(k / 6))).astype(np.uint8)
            picture[40:64, 2 * k : 2 * k + 20] = 240
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        clip.mux(stream.encode(None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clip", nargs="?", type=Path)
    parser.add_argument("--out", type=Path, default=Path("video"))
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--frames", type=int)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    clip = options.clip or options.out / "clip.avi"
    if options.clip is None:
        make_clip(clip)
    found = separate(clip, options.out, scale=options.scale, frames=options.frames)
    print(f"{found.frames} frames, {found.share:.2%} of the pixels are foreground")

    with av.open(str(found.beside)) as video:
        pictures = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
    figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
    ax.imshow(pictures[len(pictures) // 2])
    ax.set_title("the middle frame, its background, its foreground", fontsize=10)
    ax.set_axis_off()
    figure.savefig(options.out / "middle.png", dpi=120)


if __name__ == "__main__":
    main()
