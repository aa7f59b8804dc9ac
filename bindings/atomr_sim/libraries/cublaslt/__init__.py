"""The simulated cuBLASLt. How operands are read, and the formats of numbers, lie beside this folder."""
