"""Word lists for the training text: people, places, jobs and capitals, all written by hand.

The ``HELD_OUT_*`` lists never appear in training text; evaluation draws from them.
"""


def _words(text: str) -> list[str]:
    """Split a comma-separated block into its entries."""
    return [" ".join(entry.split()) for entry in text.split(",")]


FIRST_NAMES = _words("""
    John, Jane, Alice, Bob, Carol, David, Eve, Frank, Grace, Henry, Irene, Jack, Karen, Leo, Mary,
    Nina, Oscar, Paul, Quinn, Rachel, Sam, Tina, Victor, Wendy, Xavier, Yara, Zoe, Anna, Ben,
    Clara, Daniel, Emma, Felix, George, Hannah, Ivan, Julia, Kevin, Laura, Michael, Nora, Olivia,
    Peter, Robert, Sarah, Thomas, Ursula, Vera, William, Adam, Amelia, Andrew, Angela, Anthony,
    Barbara, Brian, Bruno, Catherine, Charles, Charlotte, Chris, Christina, Claire, Daisy, Dennis,
    Diana, Edward, Elena, Elizabeth, Eric, Ethan, Eva, Fiona, Gabriel, Greta, Harry, Helen, Hugo,
    Ian, Isabel, Isaac, Jacob, James, Jason, Jennifer, Jessica, Joseph, Joshua, Julian, Justin,
    Katherine, Keith, Kyle, Lena, Liam, Linda, Lisa, Louis, Lucas, Lucy, Maria, Mark, Martin,
    Matthew, Maya, Megan, Melissa, Mia, Nancy, Nathan, Nicholas, Noah, Patricia, Patrick, Philip,
    Rebecca, Richard, Rosa, Ruth, Ryan, Samuel, Sandra, Scott, Sofia, Sophie, Stephen, Susan,
    Theresa, Timothy, Tom, Vincent, Walter, Yvonne, Ahmed, Aisha, Akira, Ali, Amir, Ana, Anil,
    Antonio, Carlos, Chen, Chidi, Diego, Fatima, Giulia, Hans, Hiroshi, Ibrahim, Ingrid, Jin,
    José, Juan, Kaito, Kenji, Khalid, Kofi, Lars, Layla, Lin, Luca, Luis, Marco, Mateo, Mei,
    Mohammed, Nadia, Olga, Omar, Pablo, Pedro, Priya, Rafael, Raj, Ravi, Renée, Sakura, Sanjay,
    Sergei, Sven, Tariq, Tatiana, Wei, Yuki, Yusuf, Zainab, Zoë, Andrea, Anita, Astrid, Boris,
    Camila, Cedric, Dmitri, Elif, Emil, Erik, Farah, Francesca, Freya, Gustav, Hassan, Helga,
    Igor, Jana, Jorge, Karim, Leila, Magnus, Malik, Manuel, Marta, Mina, Natalia, Niko, Paolo,
    Petra, Ramon, Rosalind, Salma, Simon, Stefan, Sunita, Teresa, Umar, Valentina, Viktor""")

LAST_NAMES = _words("""
    Doe, Smith, Johnson, Williams, Brown, Jones, Miller, Davis, Garcia, Rodriguez, Wilson,
    Martinez, Anderson, Taylor, Thomas, Hernandez, Moore, Martin, Jackson, Thompson, White, Lopez,
    Lee, Gonzalez, Harris, Clark, Lewis, Robinson, Walker, Perez, Hall, Young, Allen, Sanchez,
    Wright, King, Scott, Green, Baker, Adams, Nelson, Hill, Ramirez, Campbell, Mitchell, Roberts,
    Carter, Phillips, Evans, Turner, Torres, Parker, Collins, Edwards, Stewart, Flores, Morris,
    Nguyen, Murphy, Rivera, Cook, Rogers, Morgan, Peterson, Cooper, Reed, Bailey, Bell, Gomez,
    Kelly, Howard, Ward, Cox, Diaz, Richardson, Wood, Watson, Brooks, Bennett, Gray, James, Reyes,
    Cruz, Hughes, Price, Myers, Long, Foster, Sanders, Ross, Morales, Powell, Sullivan, Russell,
    Ortiz, Jenkins, Gutierrez, Perry, Butler, Barnes, Fisher, Black, Blue, Red, Silver, Gold,
    Stone, Rose, Fox, Wolf, Hart, Lane, Marsh, Frost, Snow, West, North, Day, May, Banks, Burns,
    Chen, Wang, Li, Zhang, Liu, Yang, Huang, Kim, Park, Choi, Tanaka, Sato, Suzuki, Yamamoto,
    Nakamura, Kumar, Sharma, Singh, Patel, Gupta, Khan, Ahmed, Ali, Hassan, Hussein, Ibrahim,
    Okafor, Mensah, Diallo, Mwangi, Abebe, Müller, Schmidt, Schneider, Fischer, Weber, Wagner,
    Becker, Hoffmann, Koch, Rossi, Russo, Ferrari, Bianchi, Romano, Dubois, Durand, Lefèvre,
    Moreau, Laurent, Silva, Santos, Oliveira, Pereira, Costa, Almeida, Fernández, Álvarez,
    Ivanov, Petrov, Smirnov, Kuznetsov, Popov, Novak, Kowalski, Nowak, Horvat, Jansen, De Vries,
    Van Dijk, Bakker, Visser, Andersson, Johansson, Larsen, Hansen, Nielsen, Olsen, Berg, Lind,
    O'Brien, O'Connor, McDonald, McCarthy, Campbell-Reed, Lloyd-Jones, García-Lopez""")

HELD_OUT_FIRST_NAMES = _words("""
    Beatrice, Callum, Dorothy, Edgar, Florence, Gordon, Harriet, Ismael, Jasmine, Kurt, Lorenzo,
    Miriam, Nigel, Odette, Percy, Rosemary, Sebastian, Tobias, Una, Vanessa, Winston, Xiomara,
    Yasmin, Zachary, Björn, Chloé, Hideo, Kwame, Ludmila, Thandiwe, Naomi, Gareth, Imogen""")

HELD_OUT_LAST_NAMES = _words("""
    Abbott, Blackwood, Crawford, Donovan, Ellsworth, Fairchild, Goldberg, Holloway, Ingram,
    Jefferson, Kingsley, Lombardi, MacLeod, Nightingale, Osborne, Pemberton, Quigley, Radcliffe,
    Sinclair, Thornton, Underwood, Vasquez, Whitaker, Yilmaz, Zimmermann, Orange, Purple, Violet,
    Nkrumah, Takahashi, Papadopoulos, D'Angelo, Saint-Clair, Sørensen, Castañeda""")

OCCUPATIONS = _words("""
    Engineer, Doctor, Teacher, Lawyer, Nurse, Artist, Chef, Writer, Musician, Scientist, Manager,
    Designer, Developer, Architect, Accountant, Analyst, Actor, Actress, Baker, Barber, Biologist,
    Butcher, Carpenter, Cashier, Chemist, Clerk, Coach, Consultant, Dancer, Dentist, Director,
    Driver, Economist, Editor, Electrician, Entrepreneur, Farmer, Firefighter, Fisherman, Florist,
    Gardener, Geologist, Historian, Janitor, Jeweler, Journalist, Judge, Librarian, Lecturer,
    Mathematician, Mechanic, Model, Optician, Painter, Paramedic, Pharmacist, Photographer,
    Physicist, Pilot, Plumber, Poet, Police Officer, Politician, Professor, Programmer,
    Psychologist, Receptionist, Researcher, Sailor, Salesperson, Secretary, Singer, Soldier,
    Surgeon, Surveyor, Tailor, Technician, Therapist, Translator, Veterinarian, Waiter, Welder,
    Zoologist, Data Scientist, Software Engineer, Graphic Designer, Web Developer,
    Marketing Manager, Project Manager, Product Manager, Sales Manager, Civil Engineer,
    Mechanical Engineer, Social Worker, Flight Attendant, Real Estate Agent, Data Analyst,
    Financial Analyst, Research Assistant, Truck Driver, Bus Driver, Interior Designer,
    Fashion Designer, Event Planner, Security Guard, Personal Trainer, Game Developer, Astronaut,
    Astronomer, Bartender, Blogger, Botanist, Bricklayer, Broker, Curator, Detective, Diplomat,
    Diver, Engraver, Filmmaker, Geographer, Hairdresser, Illustrator, Inspector, Interpreter,
    Investor, Linguist, Midwife, Miner, Novelist, Nutritionist, Philosopher, Physiotherapist,
    Potter, Printer, Producer, Ranger, Recruiter, Retired, Roofer, Shepherd, Statistician,
    Student, Tour Guide, Trader, Tutor, Urban Planner, Video Editor, Weaver, Yoga Instructor""")

HELD_OUT_OCCUPATIONS = _words("""
    Beekeeper, Cartographer, Locksmith, Stonemason, Sound Engineer, Cardiologist, Auctioneer,
    Blacksmith, Chauffeur, Copywriter, Glazier, Harpist, Network Administrator, Sommelier""")

COUNTRIES = _words("""
    USA, UK, Canada, Australia, New Zealand, Germany, France, Spain, Italy, Portugal, Ireland,
    Netherlands, Belgium, Switzerland, Austria, Sweden, Norway, Denmark, Finland, Iceland, Poland,
    Czech Republic, Slovakia, Hungary, Romania, Bulgaria, Greece, Turkey, Russia, Ukraine, China,
    Japan, South Korea, North Korea, India, Pakistan, Bangladesh, Sri Lanka, Nepal, Thailand,
    Vietnam, Malaysia, Singapore, Indonesia, Philippines, Mexico, Brazil, Argentina, Chile, Peru,
    Colombia, Venezuela, Ecuador, Bolivia, Uruguay, Paraguay, Cuba, Jamaica, Egypt, Morocco,
    Algeria, Tunisia, Libya, Nigeria, Ghana, Kenya, Ethiopia, Tanzania, Uganda, Rwanda, Zambia,
    Zimbabwe, Angola, Senegal, Cameroon, South Africa, Namibia, Botswana, Israel, Jordan, Lebanon,
    Iran, Iraq, Saudi Arabia, United Arab Emirates, Qatar, Kuwait, Oman, Yemen, Kazakhstan,
    Uzbekistan, Mongolia, Estonia, Latvia, Lithuania, Croatia, Serbia, Slovenia, Albania, Malta,
    Cyprus, Luxembourg, Panama, Costa Rica, Guatemala, Honduras, Haiti, Dominican Republic,
    United States, United Kingdom, Myanmar, Cambodia, Sudan, Somalia, Madagascar, Mozambique""")

HELD_OUT_COUNTRIES = _words("""
    Fiji, Georgia, Armenia, El Salvador, Nicaragua, Gabon, Liechtenstein, Papua New Guinea,
    Bhutan, Moldova, Trinidad and Tobago, Barbados""")

CITIES = _words("""
    London, Paris, Berlin, Madrid, Rome, Lisbon, Dublin, Amsterdam, Brussels, Vienna, Zurich,
    Geneva, Stockholm, Oslo, Copenhagen, Helsinki, Warsaw, Prague, Budapest, Athens, Istanbul,
    Moscow, Kyiv, New York, Los Angeles, Chicago, Houston, Phoenix, Philadelphia, San Antonio,
    San Diego, Dallas, Austin, San Francisco, Seattle, Denver, Boston, Miami, Atlanta, Portland,
    Springfield, Las Vegas, Detroit, Toronto, Vancouver, Montreal, Ottawa, Sydney, Melbourne,
    Brisbane, Perth, Auckland, Wellington, Tokyo, Osaka, Kyoto, Seoul, Busan, Beijing, Shanghai,
    Hong Kong, Taipei, Bangkok, Hanoi, Singapore, Jakarta, Manila, Kuala Lumpur, Mumbai, Delhi,
    Bangalore, Karachi, Lahore, Dhaka, Colombo, Dubai, Doha, Riyadh, Tehran, Baghdad, Cairo,
    Casablanca, Tunis, Algiers, Lagos, Accra, Nairobi, Addis Ababa, Johannesburg, Cape Town,
    Mexico City, Bogotá, Lima, Santiago, Buenos Aires, São Paulo, Rio de Janeiro, Brasília,
    Caracas, Quito, Havana, Munich, Hamburg, Frankfurt, Milan, Naples, Barcelona, Valencia, Porto,
    Lyon, Marseille, Manchester, Liverpool, Edinburgh, Glasgow, Bristol, Krakow, Rotterdam""")

HELD_OUT_CITIES = _words("""
    Leeds, Nashville, Turin, Bordeaux, Salzburg, Gothenburg, Adelaide, Calgary, Nagoya, Medellín,
    Mombasa, Baltimore, Tampa, Antwerp, Leipzig, Oxford, Christchurch, Chiang Mai""")

REGIONS = _words("""
    IL, ON, CA, NY, TX, BC, QC, WA, OR, FL, CO, MA, GA, NV, AZ, MI, OH, PA, NC, VIC, NSW, QLD,
    UK, USA, Germany, France, Spain, Italy, Japan, Australia, Canada, India, Brazil, NZ, AU, FR,
    DE, JP, IN, BR, ZA, South Africa, New Zealand, South Korea, Mexico, China""")

STREETS = _words("""
    Main, Oak, Pine, Maple, Cedar, Elm, Birch, Walnut, Chestnut, Willow, Park, Lake, Hill, River,
    Church, High, Market, Station, King, Queen, Bridge, Garden, Sunset, Spring, Forest, Meadow,
    Mill, School, Washington, Lincoln, Jefferson, Highland, Valley, Ash, Beech, Poplar, Spruce,
    Magnolia, Cherry, Juniper, Redwood, Palm, Olive, Rose, Lavender, Green, Broad, Bay, Ocean,
    Harbor, Castle, Victoria, Albert, Mountain, Cypress, Sycamore, Fir, Hazel, Holly, Laurel""")

STREET_KINDS = _words("St, Street, Ave, Avenue, Rd, Road, Ln, Lane, Dr, Drive, Blvd, Way, Court")

DOMAINS = _words("""
    example, mail, test, email, company, work, office, post, inbox, web, acme, contoso, school""")

DOMAIN_ENDINGS = _words("com, com, com, com, org, net, io, co.uk, de, fr, edu")

# The 60 most populous countries, each with its capital.
CAPITALS = dict(
    pair.split(": ")
    for pair in _words("""
    India: New Delhi, China: Beijing, the United States: Washington, Indonesia: Jakarta,
    Pakistan: Islamabad, Nigeria: Abuja, Brazil: Brasília, Bangladesh: Dhaka, Russia: Moscow,
    Ethiopia: Addis Ababa, Mexico: Mexico City, Japan: Tokyo, Egypt: Cairo,
    the Philippines: Manila, the Democratic Republic of the Congo: Kinshasa, Vietnam: Hanoi,
    Iran: Tehran, Turkey: Ankara, Germany: Berlin, Thailand: Bangkok,
    the United Kingdom: London, Tanzania: Dodoma, France: Paris, South Africa: Pretoria,
    Italy: Rome, Kenya: Nairobi, Myanmar: Naypyidaw, Colombia: Bogotá, South Korea: Seoul,
    Sudan: Khartoum, Uganda: Kampala, Spain: Madrid, Algeria: Algiers, Iraq: Baghdad,
    Argentina: Buenos Aires, Afghanistan: Kabul, Yemen: Sanaa, Canada: Ottawa, Poland: Warsaw,
    Morocco: Rabat, Angola: Luanda, Ukraine: Kyiv, Uzbekistan: Tashkent,
    Malaysia: Kuala Lumpur, Mozambique: Maputo, Ghana: Accra, Peru: Lima,
    Saudi Arabia: Riyadh, Madagascar: Antananarivo, Ivory Coast: Yamoussoukro,
    Nepal: Kathmandu, Cameroon: Yaoundé, Venezuela: Caracas, Niger: Niamey,
    Australia: Canberra, North Korea: Pyongyang, Syria: Damascus, Mali: Bamako,
    Taiwan: Taipei, Sri Lanka: Colombo""")
)
