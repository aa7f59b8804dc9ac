int i = threadIdx.x;
x[i] *= a;
