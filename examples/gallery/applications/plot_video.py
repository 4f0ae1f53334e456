"""
Background and foreground of a video
====================================

Pixel x colour x frame: a background of one tint in changing light is one component, and what
moves before it is outliers. Video is uint8 and stays so; it is converted tile by tile.
"""

import matplotlib.pyplot as plt
import numpy as np

import robustcp

height, width, frames = 48, 80, 40
rng = np.random.default_rng(0)
grey = rng.integers(60, 160, (height // 8, width // 8)).repeat(8, 0).repeat(8, 1)
wall = grey[..., None] * np.array([0.8, 1.0, 1.2])  # one tint
light = 1 + 0.1 * np.sin(np.arange(frames) / 6)
clip = wall[..., None] * light + rng.normal(0, 2, (height, width, 3, frames))
for k in range(frames):
    clip[18:34, 2 * k : 2 * k + 10, :, k] = (230, 90, 60)
X = clip.clip(0, 255).astype(np.uint8).reshape(height * width, 3, frames)
print(X.shape, X.dtype)

# %%
# Least squares has the ghost of what moves in its background.

models = {"least squares": robustcp.cpals(X, 1), "cp": robustcp.cp(X, 1)}
fit = models["cp"]
flagged = np.asarray(fit.outliers(X).mask).reshape(height, width, 3, frames).any(axis=2)

frame = 25
pictures = {"frame 25": X[:, :, frame].reshape(height, width, 3)}
for name, model in models.items():
    background = model.full()[:, :, frame].reshape(height, width, 3)
    pictures[f"background, {name}"] = background.clip(0, 255).astype(np.uint8)
picture = pictures["frame 25"].copy()
picture[~flagged[..., frame]] = 255
pictures["foreground, cp"] = picture

figure, axes = plt.subplots(2, 2, figsize=(8, 5.4), layout="constrained")
for ax, (name, picture) in zip(axes.flat, pictures.items(), strict=True):
    ax.imshow(picture)
    ax.set_title(name, fontsize=10)
    ax.set_axis_off()
plt.show()

# %%
# How far off the background is where the walker was at any time.

where = (np.asarray(X).reshape(height, width, 3, frames)[..., 0, :] > 200).any(axis=2)
truth = wall[..., None] * light
for name, model in models.items():
    off = np.abs(model.full().reshape(truth.shape) - truth)[where]
    print(f"{name:14} mean error of the background there {off.mean():.1f} grey levels")
