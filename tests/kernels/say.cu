// What kernels print.

extern "C" __global__ void formats(double x, long long big, int *counts)
{
    const char *word = big > 0 ? "ab" : "cd";
    counts[0] = printf("%d %5.2f|%-6s|%c|%u|%llx|%lld\n", -5, x, word, 'z', 4000000000u, big, -big);
    counts[1] = printf("%e %g %.0f%%|%05d|%+i|% d|%#o|%#X|%6.3s|\n", x, 1e10 * x, x, 42, 7, 7, 8, 255, "abcdef");
    counts[2] = printf("%hd %ld %*d\n", (short)-3, 123456789012l, 6, 99);
    counts[3] = printf("no more\n");
}

extern "C" __global__ void everyone(int first)
{
    int t = threadIdx.y * blockDim.x + threadIdx.x;
    if (t % 2) printf("block %d, thread %2d\n", blockIdx.x, first + t);
}
