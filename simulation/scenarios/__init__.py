"""Scenarios: scripted events on the simulated cluster. Each scenario has a text file that people can read."""
