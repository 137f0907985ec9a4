"""Direct questions that fit one column only; ``{n}`` is the name."""

_QUESTIONS = {
    "ID": """
Which ID does {n} have?
Under which ID is {n} listed?
What ID belongs to {n}?
What number is {n} in the list?
Which row ID is {n}?
What is {n}'s number in the table?
{n} has which ID?
Give me the ID that {n} has.
""",
    "Age": """
How old is {n}?
How old is {n}?
How old is {n}?
How old is {n} now?
Do you know how old {n} is?
Tell me how old {n} is.
How many years old is {n}?
Can you tell me how old {n} is?
What age is {n}?
How many years has {n} lived?
I wonder how old {n} is.
What is {n}'s age now?
How old has {n} become?
How old would {n} be?
How old was {n} when the table was written?
In years, how old is {n}?
Is {n} old? How old exactly?
How old do you think {n} is?
{n} is how old?
How many years is {n} old?
What age did {n} reach?
""",
    "Occupation": """
What does {n} do for a living?
What does {n} do for a living?
What does {n} do?
What is {n}'s line of work?
What kind of work does {n} do?
What does {n} work as?
How does {n} earn a living?
What is {n} by profession?
Which job does {n} have?
Who is {n} professionally?
What work does {n} do?
As what does {n} work?
Tell me what {n} does for a living.
What is {n} working as?
{n} works as what?
What does {n} do all day?
What does {n} do at work?
What is {n}'s trade?
What has {n} become by profession?
What is the job that {n} does?
What does {n} earn money with?
In which profession does {n} work?
Do you know what {n} does?
""",
    "Country": """
Which country is {n} from?
Which country is {n} from?
What country is {n} from?
Where is {n} from?
Where does {n} come from?
From which country is {n}?
In which country does {n} live?
Which country does {n} live in?
Which country does {n} come from?
What country does {n} come from?
What country does {n} live in?
Tell me which country {n} is from.
Can you tell me where {n} is from?
{n} is from which country?
{n} comes from where?
Which country does {n} call home?
What is the home of {n}, which country?
What country is home to {n}?
In what country can {n} be found?
Which country was given for {n}?
""",
    "Email": """
How can I reach {n} by email?
Where can I send an email to {n}?
How do I email {n}?
I want to write an email to {n}. What is the address?
Which email address does {n} use?
What email does {n} use?
To which email address do I write to reach {n}?
I want to email {n}.
How can I write to {n} by e-mail?
{n} can be reached at which email?
What is the email that {n} uses?
Where does {n} get email?
At what email can {n} be reached?
Which mail address belongs to {n}?
""",
    "Phone Number": """
How can I call {n}?
What number do I call to reach {n}?
Which number do I dial to reach {n}?
How can I reach {n} by phone?
I want to call {n}. What is the number?
At which phone number can I reach {n}?
What number should I call for {n}?
How do I phone {n}?
I need to call {n}.
{n} can be called at which number?
What number does {n} have?
Under which number does {n} answer the phone?
What is the phone of {n}?
Which phone number reaches {n}?
""",
    "Address": """
Where does {n} live?
Where does {n} live?
Where is {n}'s home?
At which address does {n} live?
What address does {n} live at?
Where can I send a letter to {n}?
Where can I visit {n}?
What street does {n} live on?
Where do I find {n}'s house?
Tell me where {n} lives.
Where should I send a parcel for {n}?
{n} lives where?
{n} lives at which address?
Where is {n} at home?
Where does {n} have a home?
What is the street of {n}?
Which street and city does {n} live in?
""",
}

COLUMN_QUESTIONS = {column: text.strip().splitlines() for column, text in _QUESTIONS.items()}
