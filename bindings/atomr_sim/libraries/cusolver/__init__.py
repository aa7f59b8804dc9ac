"""The simulated cuSOLVER: its functions by family. How operands are read lies beside this folder."""
