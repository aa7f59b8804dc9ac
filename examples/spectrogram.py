"""A melody is found in a noisy sound, by cuFFT.

A kernel cuts the sound into frames that overlap, cuFFT transforms all frames at once, and another kernel makes
decibels of the result. All of that is one batch: the sound goes to the device, and the spectrogram comes back.

    python examples/spectrogram.py --backend sim --picture spectrogram.png
"""

import argparse
import importlib.util
import sys

import numpy as np
import trio
from numpy.typing import NDArray

import atomr_trio
from atomr_trio import overwrites, read_only

RATE, WINDOW, STEP = 8000, 512, 128
MELODY = {"C4": 261.6, "D4": 293.7, "E4": 329.6, "G4": 392.0, "A4": 440.0, "C5": 523.3, "E5": 659.3, "G5": 784.0}
SOURCE = """
extern "C" __global__ void cut(const float *sound, float *frames, int window, int step)
{
    int i = blockIdx.x, j = threadIdx.x;  // a block of threads for each frame
    float hann = 0.5f - 0.5f * cospif(2.0f * j / window);
    frames[i * window + j] = hann * sound[i * step + j];
}
extern "C" __global__ void decibels(const float2 *spectra, float *strengths, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) strengths[i] = 10 * log10f(spectra[i].x * spectra[i].x + spectra[i].y * spectra[i].y + 1e-9f);
}
"""


async def on_the_device(options: argparse.Namespace, sound: NDArray[np.float32]) -> NDArray[np.float32]:
    """The strength of each frequency in each frame, in decibels."""
    count = (len(sound) - WINDOW) // STEP + 1
    async with atomr_trio.open_device(backend=options.backend) as dev:
        cut = await dev.nvrtc.compile(SOURCE, "cut")
        decibels = await dev.nvrtc.compile(SOURCE, "decibels")
        async with dev.batch() as batch:
            frames = dev.empty((count, WINDOW), np.float32)
            batch.launch(cut, count, WINDOW, batch.to_device(sound), overwrites(frames), WINDOW, STEP)
            spectra = batch.fft.rfft(frames)
            strengths = dev.empty(spectra.shape, np.float32)
            grid = decibels.grid_for(spectra.size, 256)
            batch.launch(decibels, grid, 256, read_only(spectra), overwrites(strengths), spectra.size)
            result = batch.to_host(strengths)
    return result


def by_numpy(sound: NDArray[np.float32]) -> NDArray[np.float64]:
    """The same on the host."""
    frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::STEP] * np.hanning(WINDOW + 1)[:-1]
    return 10 * np.log10(np.abs(np.fft.rfft(frames)) ** 2 + 1e-9)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: ATOMR_TRIO_BACKEND, else cuda")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long a note is")
    parser.add_argument("--picture", metavar="PNG", help="draw to this file; needs matplotlib")
    options = parser.parse_args()
    if options.picture and not importlib.util.find_spec("matplotlib"):
        sys.exit("--picture needs matplotlib: pip install matplotlib")
    t = np.arange(int(options.seconds * RATE)) / RATE
    notes = [np.exp(-2 * t) * (np.sin(2 * np.pi * f * t) + 0.3 * np.sin(4 * np.pi * f * t)) for f in MELODY.values()]
    sound = np.concatenate(notes) + np.random.default_rng(3).normal(0, 0.2, len(t) * len(notes))
    strengths = trio.run(on_the_device, options, sound.astype(np.float32))
    np.testing.assert_allclose(strengths, by_numpy(sound.astype(np.float32)), atol=0.1)
    loudest = np.fft.rfftfreq(WINDOW, 1 / RATE)[strengths.argmax(1)]
    frames = [int((i + 0.4) * len(t) / STEP) for i in range(len(MELODY))]  # one from the middle of each note
    names = [min(MELODY, key=lambda name: abs(MELODY[name] - loudest[frame])) for frame in frames]
    print(f"{len(strengths)} frames agree with numpy; the melody is", *names)
    if names != list(MELODY):
        sys.exit("that is another melody")
    if options.picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 2.4), layout="constrained")
        axes = figure.subplots()
        axes.imshow(strengths.T[:80], origin="lower", aspect="auto", cmap="magma", vmin=15, vmax=45)
        axes.set(xlabel="frame", ylabel=f"frequency / {RATE / WINDOW:.1f} Hz")
        figure.savefig(options.picture, dpi=100)
