"""What is tried on two recorded programs, one module a question."""
