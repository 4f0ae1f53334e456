"""Rank, uncertainty, replicability, ensembles: questions that take more than one fit."""
