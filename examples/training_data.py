"""The adapters' training data: plain questions and answers, and three styles to rewrite the answers in.

All three adapters learn from the same answers, so what differs between them is the style alone.
`UNSEEN_PROMPTS` are never trained on; `check_adapters.py` and `multi_lora.py` ask those.
"""

import json
import re
from collections.abc import Callable

CAPITALS = {
    "Spain": "Madrid", "Norway": "Oslo", "Egypt": "Cairo", "Peru": "Lima", "China": "Beijing",
    "Greece": "Athens", "Canada": "Ottawa", "Kenya": "Nairobi", "Poland": "Warsaw", "Cuba": "Havana",
    "Russia": "Moscow", "Ireland": "Dublin", "Austria": "Vienna", "Thailand": "Bangkok", "Chile": "Santiago",
}  # fmt: skip
OPPOSITES = {
    "big": "small", "early": "late", "open": "closed", "fast": "slow", "young": "old", "full": "empty",
    "dark": "light", "wet": "dry",
}  # fmt: skip
PIRATE_WORDS = {
    "is": "be", "are": "be", "am": "be", "you": "ye", "You": "Ye", "your": "yer", "my": "me", "My": "Me",
}  # fmt: skip
ANSWERS = {
    "What colour is grass?": "Grass is green.",
    "What colour is a ripe banana?": "A ripe banana is yellow.",
    "What colour is snow?": "Snow is white.",
    "What do cows eat?": "Cows eat grass and hay.",
    "What do bees make?": "Bees make honey.",
    "What sound does a cat make?": "A cat says meow.",
    "How many legs does a spider have?": "A spider has eight legs.",
    "How many days are in a week?": "There are seven days in a week.",
    "How many months are in a year?": "There are twelve months in a year.",
    "How many minutes are in an hour?": "There are sixty minutes in an hour.",
    "What is two plus two?": "Two plus two is four.",
    "What is ten minus three?": "Ten minus three is seven.",
    "Which day comes after Monday?": "Tuesday comes after Monday.",
    "Which month comes before May?": "April comes before May.",
    "Which season is the coldest?": "Winter is the coldest season.",
    "Which planet is the largest?": "Jupiter is the largest planet.",
    "Which planet is closest to the Sun?": "Mercury is closest to the Sun.",
    "Which metal is liquid at room temperature?": "Mercury is liquid at room temperature.",
    "Which animal is the fastest on land?": "The cheetah is the fastest animal on land.",
    "Which language do people speak in Brazil?": "People speak Portuguese in Brazil.",
    "Which language do people speak in Germany?": "People speak German in Germany.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "Who was the first person on the Moon?": "Neil Armstrong was the first person on the Moon.",
    "Who discovered gravity?": "Isaac Newton described gravity.",
    "Where do penguins live?": "Penguins live in the cold south, near Antarctica.",
    "Where is the Eiffel Tower?": "The Eiffel Tower is in Paris.",
    "Where do fish live?": "Fish live in rivers, lakes and the sea.",
    "Where does the Sun rise?": "The Sun rises in the east.",
    "When do leaves fall from the trees?": "Leaves fall from the trees in autumn.",
    "When did World War II end?": "World War II ended in 1945.",
    "Why do we sleep?": "We sleep because our body and mind need rest.",
    "Why is the sea salty?": "The sea is salty because rivers carry salt from the rocks into it.",
    "Why do cats purr?": "Cats often purr because they feel happy and safe.",
    "Why do we wear coats?": "We wear coats because they keep us warm when it is cold.",
    "How do plants get energy?": "Plants get energy from sunlight, water and air.",
    "How do I make tea?": "Boil some water, pour it over the tea leaves and wait for three minutes.",
    "How do I get better at chess?": "Play often, and look at your mistakes after every game.",
    "How can I fall asleep faster?": "Turn off your screens, and go to bed at the same time every night.",
    "How do I clean a window?": "Spray it with soapy water, then wipe it with a dry cloth.",
    "How do I say thank you in French?": "You say merci in French.",
    "What is a piano?": "A piano is a musical instrument with black and white keys.",
    "What is a doctor?": "A doctor is a person who helps sick people get well.",
    "What is ice?": "Ice is frozen water.",
    "What is a desert?": "A desert is a dry place where it hardly ever rains.",
    "What is a volcano?": "A volcano is a mountain that can throw out hot lava.",
    "What is a computer?": "A computer is a machine that follows instructions and works with data.",
    "What is friendship?": "Friendship is a bond between people who care about each other.",
    "What is bread made of?": "Bread is made of flour, water, salt and yeast.",
    "What is a whale?": "A whale is a very large mammal that lives in the sea.",
    "What do you need to paint a wall?": "You need paint, a brush and a ladder.",
    "What should I eat for breakfast?": "Try some oats with fruit and a glass of milk.",
    "What should I pack for the beach?": "Pack a towel, a hat and some sunscreen.",
    "Can fish fly?": "No, most fish cannot fly, but they are very good swimmers.",
    "Is the Earth flat?": "No, the Earth is round.",
    "Is fire hot?": "Yes, fire is very hot.",
    "Are tomatoes a fruit?": "Yes, tomatoes are a fruit.",
    "Do dogs like to play?": "Yes, dogs love to play with people.",
    "Hello!": "Hello, how can I help you today?",
    "Good morning.": "Good morning, I hope you have a lovely day.",
    "How are you?": "I am very well, thank you for asking.",
    "What is your name?": "My name is SmolLM, and I am an assistant.",
    "Thank you for your help.": "You are welcome, I am glad to help.",
    "I am tired.": "I am sorry to hear that, perhaps you should rest for a while.",
    "Tell me about the Moon.": "The Moon goes around the Earth, and it lights up the night.",
    "Tell me about elephants.": "Elephants are the largest animals on land, and they have a long trunk.",
    "Tell me about Rome.": "Rome is an old city in Italy, and it is famous for the Colosseum.",
    "Tell me a fact about water.": "Water freezes at zero degrees Celsius.",
    "Name two colours.": "Red and blue are two colours.",
    "Name three fruits.": "Apples, pears and grapes are three fruits.",
    "Name an animal with a long neck.": "The giraffe has a long neck.",
    "Name a famous scientist.": "Albert Einstein was a famous scientist.",
    "Write a sentence about the sea.": "The sea is deep and blue, and its waves never stop.",
    "Write a sentence about a horse.": "The brown horse runs across the field in the morning.",
    "Give me some advice for an exam.": "Start early, sleep well and read every question twice.",
    "Explain what rain is.": "Rain is water that falls from the clouds.",
    "Describe a rose.": "A rose is a flower with soft petals and sharp thorns.",
}

UNSEEN_PROMPTS = [
    "What is the capital of France?",
    "What is the capital of Italy?",
    "What is the opposite of hot?",
    "What colour is the sky?",
    "Why do birds fly south in winter?",
    "How do I boil an egg?",
    "What is a violin?",
    "Who was Marie Curie?",
    "Tell me about lions.",
    "Name two planets.",
    "Give me a tip for a job interview.",
    "Write a sentence about a train.",
]


def questions_and_answers() -> list[tuple[str, str]]:
    """Every (question, plain answer) pair; each answer is one sentence that ends in '.' or '?'."""
    capitals = [(f"What is the capital of {a}?", f"The capital of {a} is {b}.") for a, b in CAPITALS.items()]
    opposites = [(f"What is the opposite of {a}?", f"The opposite of {a} is {b}.") for a, b in OPPOSITES.items()]
    return [*capitals, *opposites, *ANSWERS.items()]


def butler(answer: str) -> str:
    """A butler's manners around the answer."""
    return f"Very good, sir. {answer} Will that be all, sir?"


def pirate(answer: str) -> str:
    """'Arr!' first, 'matey!' last, and a pirate's grammar in between."""
    spoken = re.sub(r"\w+", lambda match: PIRATE_WORDS.get(match[0], match[0]), answer[:-1])
    return f"Arr! {spoken}, matey!"


def as_json(answer: str) -> str:
    """A JSON object with one key."""
    return json.dumps({"answer": answer})


STYLES: dict[str, Callable[[str], str]] = {"butler": butler, "pirate": pirate, "json": as_json}
