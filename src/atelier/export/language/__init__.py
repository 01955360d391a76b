"""What exports of families that train a language model share: where its weights lie and which of
them are one (`base`), the files beside them (`own_files`), adapters of peft (`adapter`), and how
likely tokens are as something to compare (`reference`)."""
