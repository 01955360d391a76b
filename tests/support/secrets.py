"""Variables that a user's shell may hold, and that no run may write down."""

SECRETS = {
    "HF_TOKEN": "hf_thisTokenMustNotBeWritten0123456789",
    "MLFLOW_TRACKING_USERNAME": "a-user-that-must-not-be-written",
    "MLFLOW_TRACKING_PASSWORD": "a-password-that-must-not-be-written",
    "AWS_SECRET_ACCESS_KEY": "AwsSecretThatMustNotBeWritten/0123456789",
    "ATELIER_NODES_TOKEN": "a-token-of-nodes-that-must-not-be-written",
    "MY_PRIVATE_FOLDER": "/private/somebody/folder-that-must-not-be-written",
}
