"""The one loop, its distributed engines and its checkpoints. Imports neither prefect nor mlflow."""
