"""The made-up world the model knows, and a little of the real one: fixed tables, no logic beyond look-up."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Person:
    name: str
    she: str
    age: int
    job: str
    town: str
    pet: str
    pet_name: str
    colour: str
    friend: str

    @property
    def her(self) -> str:
        return "her" if self.she == "she" else "his"


@dataclass(frozen=True)
class Town:
    name: str
    land: str
    landmark: str
    river: str
    goods: str


@dataclass(frozen=True)
class Animal:
    name: str
    sound: str
    legs: int
    home: str
    food: str


@dataclass(frozen=True)
class Thing:
    name: str
    colour: str
    place: str
    material: str
    owner: str


def article(noun: str) -> str:
    """`noun` with "a" or "an" before it."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


PEOPLE = (
    Person("Mira", "she", 34, "baker", "Lorn", "dog", "Biscuit", "red", "Tobin"),
    Person("Tobin", "he", 41, "smith", "Pell", "cat", "Ember", "blue", "Mira"),
    Person("Lena", "she", 28, "teacher", "Brast", "owl", "Hoot", "green", "Oskar"),
    Person("Oskar", "he", 52, "sailor", "Quill", "duck", "Puddle", "white", "Lena"),
    Person("Ines", "she", 37, "doctor", "Tarn", "horse", "Storm", "yellow", "Pavel"),
    Person("Pavel", "he", 45, "farmer", "Ostby", "cow", "Clover", "brown", "Ines"),
    Person("Nora", "she", 23, "singer", "Fenwick", "frog", "Jumper", "purple", "Jonas"),
    Person("Jonas", "he", 31, "painter", "Marl", "cat", "Smudge", "orange", "Nora"),
    Person("Edda", "she", 66, "weaver", "Lorn", "sheep", "Woolly", "grey", "Rufus"),
    Person("Rufus", "he", 58, "miller", "Pell", "hen", "Peck", "black", "Edda"),
    Person("Selma", "she", 49, "judge", "Brast", "dog", "Justice", "blue", "Victor"),
    Person("Victor", "he", 39, "tailor", "Quill", "cat", "Needle", "pink", "Selma"),
    Person("Wanda", "she", 27, "gardener", "Tarn", "goat", "Nibble", "green", "Bruno"),
    Person("Bruno", "he", 33, "cook", "Ostby", "dog", "Pepper", "yellow", "Wanda"),
    Person("Clara", "she", 44, "potter", "Fenwick", "horse", "Clay", "orange", "Felix"),
    Person("Felix", "he", 19, "student", "Marl", "fish", "Bubble", "purple", "Clara"),
    Person("Greta", "she", 71, "clockmaker", "Lorn", "owl", "Midnight", "black", "Hugo"),
    Person("Hugo", "he", 62, "fisher", "Pell", "duck", "Ripple", "white", "Greta"),
    Person("Ida", "she", 36, "pilot", "Brast", "snake", "Loop", "red", "Kasper"),
    Person("Kasper", "he", 29, "librarian", "Quill", "cat", "Comma", "brown", "Ida"),
    Person("Tilda", "she", 55, "carpenter", "Tarn", "dog", "Chip", "pink", "Milo"),
    Person("Milo", "he", 22, "dancer", "Ostby", "frog", "Tango", "grey", "Tilda"),
    Person("Petra", "she", 47, "lawyer", "Fenwick", "sheep", "Cloud", "white", "Anton"),
    Person("Anton", "he", 38, "plumber", "Marl", "goat", "Faucet", "blue", "Petra"),
)

TOWNS = (
    Town("Lorn", "Arvia", "mill", "Silver", "bread"),
    Town("Pell", "Arvia", "forge", "Ash", "iron"),
    Town("Brast", "Belmark", "castle", "Long", "books"),
    Town("Quill", "Belmark", "lighthouse", "Salt", "fish"),
    Town("Tarn", "Corland", "clock tower", "Cold", "honey"),
    Town("Ostby", "Corland", "market", "Gold", "cheese"),
    Town("Fenwick", "Dunmere", "bridge", "Reed", "glass"),
    Town("Marl", "Dunmere", "library", "Stone", "paper"),
)

LAND_CAPITALS = {"Arvia": "Lorn", "Belmark": "Brast", "Corland": "Tarn", "Dunmere": "Fenwick"}

ANIMALS = (
    Animal("cat", "meow", 4, "house", "fish"),
    Animal("dog", "woof", 4, "kennel", "meat"),
    Animal("horse", "neigh", 4, "stable", "hay"),
    Animal("cow", "moo", 4, "barn", "grass"),
    Animal("hen", "cluck", 2, "coop", "corn"),
    Animal("duck", "quack", 2, "pond", "bread"),
    Animal("fish", "blub", 0, "lake", "worms"),
    Animal("frog", "croak", 4, "swamp", "flies"),
    Animal("bee", "buzz", 6, "hive", "nectar"),
    Animal("spider", "tap", 8, "web", "insects"),
    Animal("snake", "hiss", 0, "desert", "eggs"),
    Animal("owl", "hoot", 2, "forest", "mice"),
    Animal("sheep", "baa", 4, "meadow", "clover"),
    Animal("goat", "maa", 4, "mountain", "leaves"),
)

THINGS = (
    Thing("kettle", "red", "kitchen", "copper", "Mira"),
    Thing("lamp", "yellow", "hall", "glass", "Lena"),
    Thing("boat", "blue", "harbour", "wood", "Oskar"),
    Thing("chair", "brown", "garden", "wood", "Wanda"),
    Thing("ladder", "grey", "barn", "iron", "Pavel"),
    Thing("bell", "black", "tower", "bronze", "Greta"),
    Thing("drum", "orange", "attic", "leather", "Nora"),
    Thing("coat", "green", "hall", "wool", "Edda"),
    Thing("hat", "purple", "attic", "wool", "Victor"),
    Thing("wheel", "brown", "workshop", "wood", "Rufus"),
    Thing("basket", "white", "cellar", "straw", "Bruno"),
    Thing("bottle", "green", "cellar", "glass", "Ines"),
    Thing("blanket", "pink", "bedroom", "wool", "Petra"),
    Thing("bucket", "blue", "barn", "iron", "Hugo"),
    Thing("candle", "white", "bedroom", "wax", "Kasper"),
    Thing("clock", "grey", "tower", "bronze", "Selma"),
    Thing("cup", "orange", "kitchen", "clay", "Clara"),
    Thing("key", "black", "workshop", "iron", "Tobin"),
    Thing("kite", "red", "garden", "paper", "Felix"),
    Thing("rope", "yellow", "harbour", "straw", "Ida"),
)

COUNTRY_CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Poland": "Warsaw", "Austria": "Vienna", "Greece": "Athens", "Turkey": "Ankara",
    "Egypt": "Cairo", "Kenya": "Nairobi", "India": "New Delhi", "China": "Beijing", "Japan": "Tokyo",
    "Russia": "Moscow", "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia", "Peru": "Lima",
    "Australia": "Canberra",
}  # fmt: skip

OPPOSITES = {
    "hot": "cold", "big": "small", "tall": "short", "fast": "slow", "light": "dark", "happy": "sad",
    "old": "young", "rich": "poor", "hard": "soft", "wet": "dry", "full": "empty", "open": "closed",
    "good": "bad", "early": "late", "near": "far", "loud": "quiet", "strong": "weak", "clean": "dirty",
    "up": "down", "left": "right", "day": "night", "yes": "no", "first": "last", "black": "white",
}  # fmt: skip

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip

COLOURS = ("red", "blue", "green", "white", "yellow", "brown", "purple", "orange", "grey", "black", "pink")

LORNISH = {
    "red": "vel", "blue": "osh", "green": "tam", "white": "lin", "black": "dur", "big": "gral",
    "small": "pim", "old": "ketu", "new": "niva", "good": "sol", "house": "damo", "dog": "woru",
    "cat": "miso", "tree": "arba", "water": "alu", "fire": "pyra", "bread": "panu", "sun": "hela",
    "moon": "luma", "star": "asti", "king": "rego", "child": "kini", "friend": "amiko", "river": "fluva",
    "stone": "petro", "book": "libo", "hand": "mano", "road": "vio", "bird": "avi", "ship": "nabo",
    "night": "noka", "day": "dia",
}  # fmt: skip

LORNISH_ADJECTIVES = ("red", "blue", "green", "white", "black", "big", "small", "old", "new", "good")
LORNISH_NOUNS = tuple(word for word in LORNISH if word not in LORNISH_ADJECTIVES)

WORDS = (
    "apple", "bird", "book", "bread", "bridge", "cat", "chair", "child", "cloud", "corn", "cup", "dog",
    "door", "dream", "duck", "earth", "fire", "fish", "flower", "forest", "fox", "game", "garden", "glass",
    "gold", "grass", "green", "hand", "hat", "hill", "honey", "horse", "house", "ice", "iron", "king", "lake",
    "lamp", "leaf", "lemon", "light", "lion", "milk", "moon", "mouse", "music", "night", "ocean", "orange",
    "owl", "paper", "pen", "queen", "rain", "red", "river", "road", "rose", "salt", "sand", "sea", "ship",
    "silver", "sky", "snow", "song", "star", "stone", "sugar", "summer", "sun", "table", "tiger", "train",
    "tree", "water", "wind", "winter", "wolf", "wood",
)  # fmt: skip

STRANGERS = (
    "Alice", "Bob", "Carol", "David", "Emma", "Frank", "Grace", "Henry", "Isabel", "Jack", "Kate", "Liam",
    "Maria", "Noah", "Olivia", "Peter", "Quentin", "Rachel", "Sam", "Tom", "Ursula", "Vera", "Will",
    "Xavier", "Yara", "Zoe", "Ana", "Ben", "Chloe", "Daniel", "Eva", "George", "Hannah", "Ivan", "Julia",
    "Karl", "Laura", "Max", "Nina", "Omar", "Paul", "Rosa", "Simon", "Thomas", "Amir", "Priya", "Kenji",
    "Mei", "Sofia", "Lucas", "John", "Mary", "James", "Linda", "Robert", "Sarah", "Michael", "Ada", "Alan",
    "Linus",
)  # fmt: skip

TOPICS = (
    "quantum physics", "photosynthesis", "the stock market", "football", "the internet", "democracy",
    "volcanoes", "dinosaurs", "machine learning", "the Roman Empire", "jazz", "black holes", "chess",
    "the weather", "vaccines", "electric cars", "the meaning of life", "love", "gravity", "evolution",
    "inflation", "the French Revolution", "Shakespeare", "robots", "the ocean", "climate change", "cooking",
    "philosophy", "history", "mathematics", "biology", "chemistry", "programming", "computers", "movies",
    "the president", "space travel", "Mars", "bicycles", "coffee", "tea", "pizza", "tennis", "poetry",
    "language", "art", "war", "peace", "money", "law",
)  # fmt: skip

PERSON = {person.name: person for person in PEOPLE}
TOWN = {town.name: town for town in TOWNS}


def folk(town: str) -> tuple[str, ...]:
    """Names of the people who live in `town`, in the order of the table."""
    return tuple(person.name for person in PEOPLE if person.town == town)


def joined(names: tuple[str, ...]) -> str:
    """An English list: "A", "A and B", "A, B and C"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
