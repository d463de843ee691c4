"""The grader: it reads back what a program did, and names it."""
