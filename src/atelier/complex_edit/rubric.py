"""What a judge is told about marking an edited image (Atelier's words)."""

from __future__ import annotations

_BANDS = """
10: nothing to object to. 9: one trifle. 7-8: small faults. 5-6: clear faults, the better part is
right. 3-4: more is wrong than right. 1-2: hardly anything is right. 0: nothing is.
"""

ALIGNMENT = f"""\
Image 1 is a picture before an edit, image 2 the same picture after it. The instruction was:
{"{prompt}"}

Give two marks from 0 to 10. They are independent of each other.
instruction_following: whether every change that was asked for is in image 2, as it was asked for.
If the instruction asks for several changes, mark each of them and take the mean.
identity_preservation: whether everything that was not to be changed is in image 2 as it is in
image 1: people, objects, text, background, style, framing.
If image 2 is the same as image 1, instruction_following is 0 and identity_preservation is 10.
{_BANDS}
Say first, in a few sentences, which changes you see and what you find missing or altered. Answer
in JSON with the keys reasoning, instruction_following and identity_preservation. Marks are texts,
"0" to "10"."""

QUALITY = f"""\
Mark from 0 to 10 how good this picture is as a picture, whatever it was meant to show.
perceptual_quality: whether light and shadows agree, whether the parts belong together, whether
edges are clean and nothing looks pasted, torn or smeared, whether the whole is pleasant to look at.
{_BANDS}
Answer in JSON with the key perceptual_quality. The mark is a text, "0" to "10"."""
